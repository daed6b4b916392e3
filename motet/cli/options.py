"""The flag groups of the commands: every engine argument and every sampling parameter, with vLLM's names."""

from __future__ import annotations

from motet.cli.flags import FlagGroup
from motet.core.config import NOT_YET, RENAMED, EngineArgs
from motet.core.params import SamplingParams

DEFAULT_MODEL = "smollm2"
MODEL_VARIABLE = "MOTET_MODEL"
MAX_TOKENS = 512  # of `motet generate`; SamplingParams' own 16 ends in mid-sentence

ENGINE_HELP = {
    "model": "A folder, a GGUF file, the name of a packaged model (smollm2, gemma3-270m) or a hub id (owner/name).",
    "tokenizer": "Take the tokenizer from this folder, GGUF file or hub id instead of the model's own.",
    "revision": "Branch, tag or commit of a hub model.",
    "dtype": "Of weights and activations: auto (the checkpoint's own), bfloat16, float16 or float32.",
    "quantization": "int8 or int4: quantise a floating checkpoint at load. gguf: the model must be a GGUF file.",
    "max_model_len": "Longest context: prompt and answer together. Default: what the model was trained for.",
    "hf_overrides": "Replace values of the model's config, as a JSON object.",
    "load_format": "auto, or dummy for random weights.",
    "skip_tokenizer_init": "Load no tokenizer: prompts are token ids, and so are answers.",
    "max_logprobs": "Most log-probabilities per token that a request may ask for; -1: no limit.",
    "generation_config": "auto: sampling defaults of the model; vllm: temperature 1, no limits.",
    "block_size": "Tokens per block of the KV cache.",
    "enable_prefix_caching": "Reuse K and V of prompts that begin alike.",
    "gpu_memory_utilization": "Share of the available memory that the KV cache may take. Default on a CPU: 0.5.",
    "kv_cache_memory_bytes": "Size of the KV cache in bytes, instead of a share.",
    "num_blocks_override": "Number of KV cache blocks, instead of a size.",
    "kv_cache_dtype": "Of cached K and V: auto (as --dtype), float32, float16, bfloat16, int8 or fp8 (also fp8_e4m3).",
    "max_num_seqs": "Most requests that run at the same time.",
    "max_num_batched_tokens": "Most tokens that one step computes; longer prompts run in chunks.",
    "scheduling_policy": "fcfs (first come, first served) or priority.",
    "async_scheduling": "Plan a step while the one before runs. Not with --speculative-config.",
    "speculative_config": 'Guess tokens ahead, as JSON: {"method": "ngram", "num_speculative_tokens": 8}.',
    "structured_outputs_config": 'How grammars are compiled, as JSON: {"disable_any_whitespace": true}.',
    "enable_lora": "Make room for LoRA adapters.",
    "max_loras": "Most adapters that one batch mixes.",
    "max_lora_rank": "Largest rank of an adapter, up to 256.",
    "max_cpu_loras": "Adapters kept in memory; the others are read again when asked for. Default: as --max-loras.",
    "device": "auto or cpu.",
    "threads": "Threads for computing. Default: physical cores that the process may use, within its cgroup's quota.",
    "enforce_eager": "Call the model op by op in every step, instead of replaying a recorded program.",
}

SAMPLING_HELP = {
    "n": "Answers per prompt.",
    "presence_penalty": "Lowers the score of tokens that have occurred in the answer; -2 to 2.",
    "frequency_penalty": "The same, by how often they have occurred; -2 to 2.",
    "repetition_penalty": "Above 1 lowers the score of tokens of prompt and answer.",
    "temperature": "0 always takes the likeliest token; higher is more varied.",
    "top_p": "Choose among the likeliest tokens that make up this share of the probability.",
    "top_k": "Choose among this many of the likeliest tokens; 0: all.",
    "min_p": "Choose among tokens at least this probable, relative to the likeliest.",
    "seed": "Another seed gives another answer; the same seed the same one.",
    "stop": "End the answer before this text. May be repeated.",
    "stop_token_ids": "End the answer at one of these token ids: 5,7.",
    "ignore_eos": "Do not end at the model's end-of-text tokens.",
    "max_tokens": "Longest answer, in tokens.",
    "min_tokens": "Shortest answer, in tokens.",
    "logprobs": "Log-probabilities of this many tokens per position in the output file; -1: all.",
    "prompt_logprobs": "The same for the prompt's tokens.",
    "skip_special_tokens": "Leave special tokens out of the text.",
    "include_stop_str_in_output": "Keep the stop text at the end of the answer.",
    "truncate_prompt_tokens": "Keep only this many tokens of the prompt's end; -1: as many as the context holds.",
    "logit_bias": 'Added to the scores of token ids, as JSON: {"42": -100}.',
    "allowed_token_ids": "Choose among these token ids only: 5,7.",
    "bad_words": "A text that the answer may not contain. May be repeated.",
}

# `seed` is the sampling parameter on the command line; the engine's own only seeds requests that bring none.
ENGINE = FlagGroup(
    panel="Engine",
    struct=EngineArgs,
    help=ENGINE_HELP,
    excluded=frozenset({"seed", "logits_processors"}),
    also_called=RENAMED,
    defaults={"model": DEFAULT_MODEL},
    variables={"model": MODEL_VARIABLE},
    accepted=NOT_YET,
)

# What the commands decide themselves, what means nothing here, and what is not supported yet.
NO_FLAGS = frozenset({"detokenize", "output_kind", "spaces_between_special_tokens", "structured_outputs", "extra_args"})
# Fields that a model's generation_config.json can set.
MODELS_OWN = dict.fromkeys(
    ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"), "what the model recommends"
)

SAMPLING = FlagGroup(
    panel="Sampling",
    struct=SamplingParams,
    help=SAMPLING_HELP,
    excluded=NO_FLAGS,
    defaults={"max_tokens": MAX_TOKENS},
    shown=MODELS_OWN,
)
CHAT_SAMPLING = FlagGroup(
    panel="Sampling",
    struct=SamplingParams,
    help=SAMPLING_HELP,
    excluded=NO_FLAGS | {"n", "logprobs", "prompt_logprobs", "truncate_prompt_tokens"},
    defaults={"max_tokens": None},
    shown={**MODELS_OWN, "max_tokens": "what the context holds"},
)
