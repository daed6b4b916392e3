"""Text in, outputs out: what `LLM` and `AsyncLLM` share."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from motet.core.config import EngineArgs, EngineConfig
from motet.core.errors import InputError, LoadError
from motet.core.lora import LoadedAdapter, LoRARequest
from motet.core.params import SamplingParams
from motet.engine.core import EngineCore
from motet.engine.grammars import choose_grammars
from motet.engine.inputs import InputProcessor, ModelFacts, ParsedPrompt, Prompt
from motet.engine.outputs import KeyedOutput, OutputProcessor
from motet.lora.store import NO_ADAPTER_STORE, AdapterStore, FileAdapterStore
from motet.models.checkpoint import Checkpoint, open_checkpoint
from motet.models.loader import LoadedModel, resolve_max_model_len
from motet.runner.build import RunnerPlan, build_runner, plan_runner
from motet.runner.runner import NO_RUNNER
from motet.sched.scheduler import Scheduler
from motet.text.load import load_tokenizer
from motet.text.tokenizer import Tokenizer


class Engine:
    """Input processor, core and output processor in one process. Not thread-safe: one thread calls it."""

    def __init__(self, config: EngineConfig) -> None:
        checkpoint = open_checkpoint(config.model)
        default_params = default_sampling_params(config, checkpoint)
        max_model_len = resolve_max_model_len(config.model, checkpoint)
        tokenizer = None if config.model.skip_tokenizer_init else load_tokenizer(checkpoint, config.model)
        plan = plan_runner(config, checkpoint, max_model_len)
        scheduler = Scheduler(
            config.scheduler,
            config.cache,
            plan.groups,
            plan.capacity,
            max_model_len,
            max_drafts=config.speculative.num_speculative_tokens if config.speculative else 0,
            lookahead=plan.lookahead,
            max_adapters=config.lora.max_loras if config.lora else 0,
        )
        self.config = config
        self.checkpoint = checkpoint
        self.capacity = plan.capacity
        self.groups = plan.groups
        self.dtype = plan.loaded.dtype
        self.weight_sizes = plan.loaded.sizes
        self.facts = ModelFacts(
            vocab_size=plan.loaded.vocab_size,
            max_model_len=max_model_len,
            max_logprobs=config.model.max_logprobs,
            eos_token_ids=eos_token_ids(checkpoint, tokenizer),
            tokenizer=tokenizer,
            logits_processors=plan.processors,
        )
        self.default_params = default_params
        self.grammars = choose_grammars(
            config.structured_outputs, tokenizer, self.facts.vocab_size, self.facts.eos_token_ids
        )
        self.inputs = InputProcessor(self.facts, config.model.seed, self.grammars)
        self.outputs = OutputProcessor(tokenizer)
        self.adapters = adapter_store(config, plan.loaded)
        runner = build_runner(config, plan, self.grammars, self.adapters)
        self.core = EngineCore(scheduler, runner, config.scheduler.async_scheduling)
        self._plan: RunnerPlan | None = plan  # None while weights are dropped
        self._keys = itertools.count()
        self.is_sleeping = False

    @classmethod
    def from_options(cls, **options: Any) -> Engine:
        return cls(EngineArgs.from_options(options).resolve())

    def parse(self, prompt: Prompt, params: SamplingParams) -> ParsedPrompt:
        """Check prompt and parameters without adding anything. Raises InputError."""
        self._check_awake()
        self.inputs.check_params(params)
        return self.inputs.parse(prompt, params)

    def adapter(self, request: LoRARequest | None) -> LoadedAdapter | None:
        """What `add` takes: the adapter, read if need be. From any thread. Raises InputError, LoadError."""
        if request is None:
            return None
        if not isinstance(request, LoRARequest):
            raise InputError(f"lora_request must be a LoRARequest, got {str(request)[:80]!r}")
        return self.adapters.require(request)

    def add_lora(self, request: LoRARequest) -> bool:
        """Read and check an adapter before a request needs it. Raises InputError, LoadError."""
        return self.adapter(request) is not None

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; requests that have it go on. False when the id is unknown."""
        return self.adapters.remove(lora_id)

    def list_loras(self) -> set[int]:
        return self.adapters.ids()

    def add(
        self,
        prompt: ParsedPrompt,
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        adapter: LoadedAdapter | None = None,
    ) -> str:
        """Queue a parsed prompt. Returns the key under which `step` reports it; clients may reuse their request ids."""
        self._check_awake()
        key = str(next(self._keys))
        arrival = time.monotonic()
        requests = self.inputs.requests(key, prompt, params, priority, arrival, adapter)
        for request in requests:
            self.core.add(request)
        self.outputs.add(key, request_id or key, prompt, params, arrival)
        return key

    def _check_awake(self) -> None:
        if self.is_sleeping:
            raise InputError("the engine sleeps; call wake_up() first")

    def step(self) -> list[KeyedOutput]:
        """Run the engine one step on; returns what has changed. Raises EngineDeadError."""
        outputs, stops = self.outputs.process(self.core.step())
        for answer, stop in stops:
            self.core.scheduler.finish(answer, stop)
        return outputs

    def abort(self, keys: Iterable[str]) -> list[KeyedOutput]:
        """End requests at once; unknown and finished keys are ignored. Returns their last outputs."""
        last = []
        for key in keys:
            answers, output = self.outputs.abort(key)
            for answer in answers:
                self.core.scheduler.abort(answer)
            if output is not None:
                last.append(output)
        return last

    def keys_of(self, request_id: str) -> list[str]:
        """Keys of the open requests that a client calls `request_id`."""
        return self.outputs.keys_of(request_id)

    @property
    def has_work(self) -> bool:
        return self.core.has_work

    def reset_prefix_cache(self) -> bool:
        return self.core.scheduler.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Give memory back: level 1 the KV cache, level 2 the weights as well. Raises InputError while requests run."""
        if level not in (1, 2):
            raise InputError(f"sleep level must be 1 or 2, got {level}")
        if self.outputs.num_open:
            raise InputError(f"{self.outputs.num_open} requests are running; finish or abort them before sleep()")
        while self.core.has_work:
            self.core.step()
        self.reset_prefix_cache()
        self.core.scheduler.forget_adapters()
        self.core.runner.close()
        self.core.runner = NO_RUNNER
        if level == 2:
            self._plan = None
        self.is_sleeping = True

    def wake_up(self) -> None:
        """Take the memory again (and read the weights again after level 2); every cache is empty."""
        if not self.is_sleeping:
            return
        if self._plan is None:
            loaded = plan_runner(self.config, self.checkpoint, self.facts.max_model_len)
            self._plan = replace(loaded, capacity=self.capacity)
        self.core.runner = build_runner(self.config, self._plan, self.grammars, self.adapters)
        self.is_sleeping = False

    def check(self) -> None:
        """Assert every invariant that holds between steps."""
        self.core.scheduler.check()

    def close(self) -> None:
        self.core.close()
        self.grammars.close()


def adapter_store(config: EngineConfig, loaded: LoadedModel) -> AdapterStore:
    if config.lora is None:
        return NO_ADAPTER_STORE
    sites = [site for layer in loaded.adapters for site in layer.sites]
    return FileAdapterStore(config.lora, sites, getattr(torch, loaded.dtype))


def eos_token_ids(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> frozenset[int]:
    """All ids that end an answer: of the generation config, the model's config and the tokenizer."""
    ids: set[int] = set()
    for value in (checkpoint.generation_config.get("eos_token_id"), checkpoint.config.get("eos_token_id")):
        ids.update([value] if isinstance(value, int) else value or ())
    return frozenset(ids | (set(tokenizer.eos_token_ids) if tokenizer else set()))


def default_sampling_params(config: EngineConfig, checkpoint: Checkpoint) -> SamplingParams:
    """What the model's generation_config.json recommends, unless `generation_config="vllm"`."""
    if config.model.generation_config == "vllm":
        return SamplingParams()
    names = {name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
    names["max_new_tokens"] = "max_tokens"
    recommended = checkpoint.generation_config
    values = {ours: recommended[name] for name, ours in names.items() if recommended.get(name) is not None}
    try:
        return SamplingParams(**values)
    except InputError as error:
        raise LoadError(
            f"the generation_config.json of {checkpoint.where!r} is wrong: {error}; correct it, or set "
            "generation_config='vllm' to ignore it"
        ) from None
