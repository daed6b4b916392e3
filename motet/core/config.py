"""Engine configuration: frozen, strict, resolved once.

`EngineArgs` is what a user writes (vLLM's flat names); `EngineConfig` is what the engine reads. Facts that only the
model or the machine knows (context length, block counts) are new values passed on, never written back.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import msgspec

from motet.core.errors import ConfigError, UnsupportedError
from motet.core.fields import settle_fields

DTYPES = ("auto", "float32", "float16", "bfloat16")
SCHEMES = ("int8", "int4")  # ways to quantise a floating checkpoint at load
READABLE = "floating checkpoints, also quantised at load (quantization='int8' or 'int4'), and GGUF files"
DTYPE_ALIASES = {"float": "float32", "half": "float16", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
GRAMMAR_BACKENDS = ("auto", "guidance")
KV_DTYPES = (*DTYPES, "int8", "fp8", "fp8_e4m3")
METHODS = ("ngram", "draft_model", "medusa")  # of speculation
KV_DTYPE_ALIASES = {**DTYPE_ALIASES, "fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn"}


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    tokenizer: str | None
    revision: str | None
    dtype: str
    quantization: str | None  # "int8" | "int4": quantise at load; "gguf": as the file is, which must be GGUF
    max_model_len: int | None
    hf_overrides: dict[str, Any]
    load_format: str  # "auto" | "dummy"
    skip_tokenizer_init: bool
    seed: int
    max_logprobs: int
    generation_config: str  # "auto": the model's own defaults; "vllm": none

    @property
    def scheme(self) -> str | None:
        """How floating weights are quantised at load, None: not."""
        return self.quantization if self.quantization in SCHEMES else None


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    block_size: int
    enable_prefix_caching: bool
    memory_utilization: float | None  # share of the memory available to the process; None: the device's default
    kv_cache_memory_bytes: int | None
    num_blocks_override: int | None
    kv_cache_dtype: str  # torch's name; "auto": the model's dtype


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str  # "fcfs" | "priority"
    async_scheduling: bool  # plan step n+1 while step n runs


class LoRAConfig(msgspec.Struct, frozen=True, kw_only=True):
    max_loras: int  # adapters in one batch
    max_rank: int
    max_cpu_loras: int  # kept in memory, those of open requests aside; others are read again


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's keys. Drafts of `num_speculative_tokens` at most are verified in a step.

    prompt_lookup_min, prompt_lookup_max: tokens at the end that `ngram` looks for
    acceptance: "exact", with the tokens of a run without drafts, or "rejection", with their distribution
    adaptive: the number of drafts follows the acceptance rate of each request, down to none
    """

    method: str
    num_speculative_tokens: int
    model: str | None = None
    revision: str | None = None
    quantization: str | None = None
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    acceptance: str = "exact"
    adaptive: bool = True

    @classmethod
    def parse(cls, options: dict[str, Any]) -> SpeculativeConfig:
        """Raises ConfigError."""
        options = dict(options)
        if options.get("method") is None:
            options["method"] = "draft_model" if options.get("model") not in (None, "ngram", "[ngram]") else "ngram"
        try:
            return msgspec.convert(options, cls)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, ConfigError):  # of the checks below
                raise error.__cause__ from None
            raise ConfigError(f"speculative_config: {error}; its keys are {', '.join(cls.__struct_fields__)}") from None

    def __post_init__(self) -> None:
        checks: list[tuple[str, bool, str]] = [
            ("method", self.method in METHODS, " or ".join(METHODS)),
            ("num_speculative_tokens", 1 <= self.num_speculative_tokens <= 64, "from 1 to 64"),
            ("model", self.method == "ngram" or bool(self.model), "what drafts: a folder, a file or a name"),
            ("prompt_lookup_min", 1 <= self.prompt_lookup_min <= self.prompt_lookup_max, "from 1 to prompt_lookup_max"),
            ("acceptance", self.acceptance in ("exact", "rejection"), "exact or rejection"),
        ]
        for name, is_good, wanted in checks:
            if not is_good:
                raise ConfigError(f"speculative_config: {name} must be {wanted}, got {getattr(self, name)!r}")


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    threads: int | None  # None: physical cores, within affinity and quota
    enforce_eager: bool  # op by op, in place of a recorded program


class StructuredOutputsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    backend: str = "auto"  # "auto" | "guidance"
    disable_any_whitespace: bool = False  # between the parts of JSON; also for requests that do not say so
    disable_additional_properties: bool = False

    def __post_init__(self) -> None:
        settle_fields(self, ConfigError)
        if self.backend not in GRAMMAR_BACKENDS:
            raise ConfigError(
                f"structured_outputs_config: backend must be one of {', '.join(GRAMMAR_BACKENDS)}, got {self.backend!r}"
            )


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    device: DeviceConfig
    structured_outputs: StructuredOutputsConfig
    lora: LoRAConfig | None = None
    speculative: SpeculativeConfig | None = None
    logits_processors: tuple[Any, ...] = ()  # callables, classes or names


# vLLM options that Motet knows and does not serve yet, with the values that ask for nothing and are therefore accepted.
NOT_YET: dict[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "distributed_executor_backend": (None, "uni"),
    "kv_transfer_config": (None,),
    "limit_mm_per_prompt": (None, {}),
    "mm_processor_kwargs": (None,),
    "cpu_offload_gb": (0, 0.0),
    "swap_space": (0, 0.0, 4, 4.0),
    "trust_remote_code": (False,),
    "enable_chunked_prefill": (True, None),
    "disable_log_stats": (True, False),
    "tokenizer_mode": ("auto",),
    "runner": ("auto", "generate"),
    "logprobs_mode": ("raw_logprobs",),
    "enable_sleep_mode": (True, False),
    "compilation_config": (None,),
    "max_seq_len_to_capture": (None,),
}
RENAMED = {"num_gpu_blocks_override": "num_blocks_override", "tokenizer_revision": "revision"}


class EngineArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `LLM`, `AsyncLLM` and the command line. Raises ConfigError or UnsupportedError on construction."""

    model: str
    tokenizer: str | None = None
    revision: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    max_model_len: int | None = None
    hf_overrides: dict[str, Any] | None = None
    load_format: str = "auto"
    skip_tokenizer_init: bool = False
    seed: int = 0
    max_logprobs: int = 20
    generation_config: str = "auto"

    block_size: int = 16
    enable_prefix_caching: bool = True
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    num_blocks_override: int | None = None
    kv_cache_dtype: str = "auto"

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    scheduling_policy: str = "fcfs"
    async_scheduling: bool = True
    speculative_config: dict[str, Any] | None = None
    logits_processors: Any = None  # a list of callables, classes or names

    structured_outputs_config: dict[str, Any] | None = None

    enable_lora: bool = False
    max_loras: int = 1
    max_lora_rank: int = 16
    max_cpu_loras: int | None = None

    device: str = "auto"
    threads: int | None = None
    enforce_eager: bool = False

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> EngineArgs:
        """Build from keyword options as vLLM's `LLM` takes them."""
        known = set(cls.__struct_fields__)
        kept: dict[str, Any] = {}
        for name, value in options.items():
            name = RENAMED.get(name, name)
            if name in known:
                if name in kept and kept[name] != value:
                    raise ConfigError(f"{name} is given under two names, as {kept[name]!r} and as {value!r}")
                kept[name] = value
            elif name in NOT_YET:
                if value not in NOT_YET[name]:
                    raise UnsupportedError(f"option {name}={value!r} is not supported yet; leave it out")
            else:
                close = get_close_matches(name, [*known, *NOT_YET], n=1)
                raise ConfigError(f"unknown option {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        if "model" not in kept:
            raise ConfigError("option 'model' is missing: a folder, a GGUF file, a packaged model's name or a hub id")
        if "dtype" in kept:
            kept["dtype"] = str(kept["dtype"]).removeprefix("torch.")
        return cls(**kept)

    def __post_init__(self) -> None:
        settle_fields(self, ConfigError)
        if self.quantization not in (None, *SCHEMES, "gguf"):
            raise UnsupportedError(f"quantization={self.quantization!r} is not supported; Motet runs {READABLE}")
        dtypes = [*DTYPES, *DTYPE_ALIASES]
        least_one = "at least 1"
        checks: list[tuple[str, bool, str]] = [
            ("model", bool(self.model), "a folder, a GGUF file, a packaged model's name or a hub id"),
            ("dtype", self.dtype in dtypes, f"one of {', '.join(DTYPES)}"),
            (
                "kv_cache_dtype",
                self.kv_cache_dtype in (*KV_DTYPES, *KV_DTYPE_ALIASES),
                f"one of {', '.join(KV_DTYPES)}",
            ),
            ("load_format", self.load_format in ("auto", "safetensors", "gguf", "dummy"), "auto or dummy"),
            ("max_model_len", self.max_model_len is None or self.max_model_len >= 2, "at least 2"),
            ("max_logprobs", self.max_logprobs >= -1, "-1 (no limit) or at least 0"),
            ("generation_config", self.generation_config in ("auto", "vllm"), "auto or vllm"),
            ("block_size", 1 <= self.block_size <= 1024, "from 1 to 1024"),
            (
                "gpu_memory_utilization",
                self.gpu_memory_utilization is None or 0 < self.gpu_memory_utilization <= 1,
                "in (0, 1]",
            ),
            (
                "kv_cache_memory_bytes",
                self.kv_cache_memory_bytes is None or self.kv_cache_memory_bytes >= 1,
                least_one,
            ),
            ("num_blocks_override", self.num_blocks_override is None or self.num_blocks_override >= 2, "at least 2"),
            ("max_num_seqs", self.max_num_seqs >= 1, least_one),
            ("max_num_batched_tokens", self.max_num_batched_tokens >= 1, least_one),
            ("scheduling_policy", self.scheduling_policy in ("fcfs", "priority"), "fcfs or priority"),
            ("max_loras", self.max_loras >= 1, least_one),
            ("max_lora_rank", 1 <= self.max_lora_rank <= 256, "from 1 to 256"),
            (
                "max_cpu_loras",
                self.max_cpu_loras is None or self.max_cpu_loras >= self.max_loras,
                f"at least max_loras={self.max_loras}",
            ),
            ("device", self.device in ("auto", "cpu"), "cpu (auto means cpu)"),
            ("threads", self.threads is None or 1 <= self.threads <= 1024, "from 1 to 1024"),
        ]
        for name, is_good, wanted in checks:
            if not is_good:
                raise ConfigError(f"{name} must be {wanted}, got {getattr(self, name)!r}")

        self._structured_outputs()

    def _structured_outputs(self) -> StructuredOutputsConfig:
        values = self.structured_outputs_config or {}
        known = StructuredOutputsConfig.__struct_fields__
        unknown = sorted(str(name) for name in values if name not in known)
        if unknown:
            raise ConfigError(f"structured_outputs_config has no key {unknown[0]!r}; it has: {', '.join(known)}")
        return StructuredOutputsConfig(**values)

    def resolve(self) -> EngineConfig:
        speculative = self.speculative_config and SpeculativeConfig.parse(self.speculative_config)
        return EngineConfig(
            model=ModelConfig(
                model=self.model,
                tokenizer=self.tokenizer,
                revision=self.revision,
                dtype=DTYPE_ALIASES.get(self.dtype, self.dtype),
                quantization=self.quantization,
                max_model_len=self.max_model_len,
                hf_overrides=self.hf_overrides or {},
                load_format=self.load_format,
                skip_tokenizer_init=self.skip_tokenizer_init,
                seed=self.seed,
                max_logprobs=self.max_logprobs,
                generation_config=self.generation_config,
            ),
            cache=CacheConfig(
                block_size=self.block_size,
                enable_prefix_caching=self.enable_prefix_caching,
                memory_utilization=self.gpu_memory_utilization,
                kv_cache_memory_bytes=self.kv_cache_memory_bytes,
                num_blocks_override=self.num_blocks_override,
                kv_cache_dtype=KV_DTYPE_ALIASES.get(self.kv_cache_dtype, self.kv_cache_dtype),
            ),
            scheduler=SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                policy=self.scheduling_policy,
                # A plan names drafts, which the step before it makes.
                async_scheduling=self.async_scheduling and not speculative,
            ),
            device=DeviceConfig(device="cpu", threads=self.threads, enforce_eager=self.enforce_eager),
            lora=self._lora() if self.enable_lora else None,
            speculative=speculative or None,
            logits_processors=tuple(self.logits_processors or ()),
            structured_outputs=self._structured_outputs(),
        )

    def _lora(self) -> LoRAConfig:
        num_kept = self.max_loras if self.max_cpu_loras is None else self.max_cpu_loras
        return LoRAConfig(max_loras=self.max_loras, max_rank=self.max_lora_rank, max_cpu_loras=num_kept)
