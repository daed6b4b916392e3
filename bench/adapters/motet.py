"""Motet, offline API, in process. Options: any engine argument (dtype, threads, block_size, ...)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def number_or_text(value: str) -> Any:
    """Options come as text, engine arguments have types."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return {"true": True, "false": False}.get(value.lower(), value)


class Engine:
    def __init__(self, model: str, **options: str) -> None:
        from motet import LLM

        chosen = {name: number_or_text(value) for name, value in options.items()}
        self.llm = LLM(model=model, **{"dtype": "bfloat16", "max_model_len": 2048, "max_num_seqs": 64, **chosen})

    def prepare(self, case: object) -> None:
        pass

    def generate(self, prompts: list[list[int]], new_len: int) -> list[list[int]]:
        from motet import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=new_len, ignore_eos=True, detokenize=False)
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def close(self) -> None:
        self.llm.shutdown()
