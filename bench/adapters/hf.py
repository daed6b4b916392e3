"""transformers. Options: mode=static (`generate` with one batch) or cb (continuous batching), attn, threads, dtype."""

from __future__ import annotations

import os

import torch


class Engine:
    def __init__(
        self, model: str, mode: str = "static", attn: str = "", threads: str = "", dtype: str = "bfloat16"
    ) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(int(threads or len(os.sched_getaffinity(0))))
        options = {"attn_implementation": attn} if attn else {}
        self.mode = mode
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), **options).eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.do_sample = False

    def prepare(self, case: object) -> None:
        pass

    def generate(self, prompts: list[list[int]], new_len: int) -> list[list[int]]:
        return self._continuous(prompts, new_len) if self.mode == "cb" else self._static(prompts, new_len)

    def _static(self, prompts: list[list[int]], new_len: int) -> list[list[int]]:
        ids = torch.tensor(prompts)  # every case has prompts of one length: no padding
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_len,
                min_new_tokens=new_len,
                do_sample=False,
                pad_token_id=0,
            )
        return out[:, ids.shape[1] :].tolist()

    def _continuous(self, prompts: list[list[int]], new_len: int) -> list[list[int]]:
        from transformers import GenerationConfig  # it works in a thread of its own: no inference_mode around it

        config = GenerationConfig(max_new_tokens=new_len, do_sample=False, eos_token_id=-1, pad_token_id=0)
        outputs = self.model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False)
        by_number = sorted(outputs.values(), key=lambda output: int(output.request_id.rsplit("_", 1)[-1]))
        return [list(output.generated_tokens) for output in by_number]

    def close(self) -> None:
        pass
