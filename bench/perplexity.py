"""What quantised weights cost: perplexity of a text that ships with the repository.

    python bench/perplexity.py CHECKPOINT [GGUF ...] [--text FILE] [--window 2048]

The checkpoint is run in bf16 and quantised at load, each GGUF file (bench/make_gguf.py writes some) as it is. The text
is cut into windows of at most `--window` tokens; each token but a window's first is predicted from those before it.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from motet import LLM, SamplingParams

TEXT = Path(__file__).parent / "data" / "essay.txt"
SCHEMES = (None, "int8", "int4")


def perplexity(llm: LLM, text: str, window: int) -> tuple[float, int]:
    """exp of the mean negative log-probability, and the number of tokens that it is the mean of."""
    token_ids = llm.get_tokenizer().encode(text)
    size = min(window, llm.engine.facts.max_model_len - 1)
    prompts: list[Any] = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
    total, count = 0.0, 0
    for output in llm.generate(prompts, params, use_tqdm=False):
        for token_id, entry in zip(output.prompt_token_ids, output.prompt_logprobs or (), strict=True):
            if entry is not None:
                total, count = total - entry[token_id].logprob, count + 1
    return math.exp(total / count), count


def measure(name: str, text: str, window: int, **options: Any) -> list[str]:
    """A row of the table; the last column is to be compared with the first row's."""
    llm = LLM(dtype="bfloat16", max_num_seqs=4, max_num_batched_tokens=512, enable_prefix_caching=False, **options)
    value, count = perplexity(llm, text, window)
    return [name, f"{value:.4f}", str(count)]


def table(rows: list[list[str]]) -> str:
    base = float(rows[0][1])
    head = ["weights", "perplexity", "tokens", "against the first"]
    lines = [head, ["---"] * len(head), *([*row, f"{float(row[1]) / base - 1:+.2%}"] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Perplexity of a model by the type of its weights.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder with safetensors")
    parser.add_argument("files", nargs="*", metavar="GGUF")
    parser.add_argument("--text", type=Path, default=TEXT, metavar="FILE")
    parser.add_argument("--window", type=int, default=2048)
    args = parser.parse_args()
    text = args.text.read_text(encoding="utf-8")
    rows = [
        measure(scheme or "bf16", text, args.window, model=args.checkpoint, quantization=scheme) for scheme in SCHEMES
    ]
    rows += [measure(Path(file).stem, text, args.window, model=file) for file in args.files]
    print(table(rows))


if __name__ == "__main__":
    main()
