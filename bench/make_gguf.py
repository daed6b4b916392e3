"""Writes a checkpoint as GGUF files, one for each type, with the metadata of an existing file of the same model.

    python bench/make_gguf.py CHECKPOINT OUT_DIR [--like FILE_OR_NAME] [--kinds Q8_0,Q4_0,Q4_1,Q5_0,Q5_1]

All matrices get the same type, the embedding too; vectors stay float32. For Llama's family (SmolLM2). The `gguf`
package can quantise to the types above; the K types have blocks of 256 and do not fit SmolLM2's rows of 576.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType

from motet import EngineArgs
from motet.models.checkpoint import Checkpoint, locate, open_checkpoint
from motet.models.gguf import GGUFFile
from motet.models.gguf_maps import config_of, family_of, rename

KINDS = "Q8_0,Q4_0,Q4_1,Q5_0,Q5_1"
FILE_TYPE = "general.file_type"


def copy_metadata(like: Path, writer: gguf.GGUFWriter, kind: GGMLQuantizationType) -> None:
    for name, entry in gguf.GGUFReader(like).fields.items():
        if name == gguf.Keys.General.ARCHITECTURE or name == FILE_TYPE or name.startswith("GGUF."):
            continue  # the writer's own
        sub_type = entry.types[-1] if entry.types[0] is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, entry.contents(), entry.types[0], sub_type)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}"])


def write(checkpoint: Checkpoint, like: Path, path: Path, kind: GGMLQuantizationType) -> None:
    """Raises KeyError for a tensor that the checkpoint lacks."""
    file = GGUFFile(like)
    family, config = family_of(file), config_of(file, family_of(file))
    writer = gguf.GGUFWriter(path, file.metadata["general.architecture"])
    copy_metadata(like, writer, kind)
    for name, info in file.tensors.items():
        tensor_kind = kind if len(info.shape) == 2 else GGMLQuantizationType.F32
        renamed = rename(family, name)
        if renamed is None:
            values = file.tensor(name, torch.float32)
        else:
            restored = checkpoint.source.get(renamed, info.shape, torch.float32)
            stored_rows = family.restore(config, renamed, torch.arange(info.shape[0]))
            values = restored[torch.as_tensor(stored_rows).argsort()]
        writer.add_tensor(name, gguf.quants.quantize(values.numpy(), tensor_kind), raw_dtype=tensor_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a checkpoint as GGUF files.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder with safetensors")
    parser.add_argument("out", metavar="OUT_DIR", help="outside the repository")
    parser.add_argument("--like", default="smollm2", metavar="FILE_OR_NAME", help="a GGUF file, or a packaged model")
    parser.add_argument("--kinds", default=KINDS)
    args = parser.parse_args()
    checkpoint = open_checkpoint(EngineArgs(model=args.checkpoint).resolve().model)
    like, out = locate(args.like), Path(args.out)
    if GGUFFile(like).metadata["general.architecture"] != "llama":
        raise SystemExit(f"{args.like!r} is not of Llama's family")
    out.mkdir(parents=True, exist_ok=True)
    for name in args.kinds.split(","):
        path = out / f"{Path(args.checkpoint).name}.{name}.gguf"
        write(checkpoint, like, path, GGMLQuantizationType[name])
        print(f"{path.stat().st_size / 2**20:.1f} MiB in {path}")


if __name__ == "__main__":
    main()
