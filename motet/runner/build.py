"""Chooses the parts of a runner and puts them together: the only place that knows which there are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import cast

import msgspec
import torch

from motet.attention.paged import PagedAttention
from motet.attention.protocol import AttentionBackend
from motet.core.config import EngineConfig, ModelConfig
from motet.core.errors import CapacityError, ConfigError
from motet.core.logs import get_logger
from motet.core.state import Capacity, StateGroup, StateSpec, group_states
from motet.lora.loader import SlotLoader
from motet.lora.store import NO_ADAPTER_STORE, AdapterLookup
from motet.models.checkpoint import Checkpoint, open_checkpoint
from motet.models.gguf import describe_types
from motet.models.loader import LoadedModel, load_model, resolve_dtype, resolve_max_model_len
from motet.models.medusa import Medusa
from motet.models.registry import ARCHITECTURES, DRAFT_HEADS, Model
from motet.ops.backend import ReferenceOps
from motet.runner.batch import PersistentBatch
from motet.runner.executor import EagerExecutor, Executor
from motet.runner.heads.autoregressive import AutoregressiveHead
from motet.runner.memory import (
    CPU_SHARE,
    activation_bytes,
    available_bytes,
    check_budget,
    check_fits,
    describe_capacity,
    inner_width,
    plan_capacity,
)
from motet.runner.runner import NO_ADAPTER_LOADER, Runner
from motet.runner.threads import default_threads
from motet.sampling.grammar.grammars import NO_GRAMMARS, Grammars
from motet.sampling.processors import LogitsProcessor, load_processors
from motet.sampling.sampler import Sampler
from motet.sampling.verify import ExactAcceptance, RejectionAcceptance, Verifier
from motet.spec.choose import Chooser
from motet.spec.draft_model import PREFIX, DraftModel, DraftStates
from motet.spec.drafter import Drafter, NoDrafter
from motet.spec.lengths import AdaptiveLengths, FixedLengths
from motet.spec.medusa import MedusaDrafter
from motet.spec.ngram import NgramDrafter
from motet.tensors.states import States, StateStore

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class DraftPlan:
    """A second model, which drafts where its positions (`max_len` of them) reach."""

    loaded: LoadedModel
    max_len: int
    num_drafts: int


@dataclass(frozen=True)
class RunnerPlan:
    """A loaded model and the room for its state, before any of that room is taken."""

    loaded: LoadedModel
    ops: ReferenceOps
    attention: AttentionBackend
    groups: tuple[StateGroup, ...]
    capacity: Capacity
    max_model_len: int
    specs: dict[str, StateSpec]  # of all models
    processors: tuple[LogitsProcessor, ...]
    draft: DraftPlan | None = None

    @property
    def lookahead(self) -> int:
        """Positions behind the tokens of a step that the drafter writes to."""
        return self.draft.num_drafts if self.draft else 0


def choose_backends() -> tuple[ReferenceOps, AttentionBackend]:
    """The C++ kernels where they are built, else the definitions in torch; MOTET_OPS=cpu or =reference insists."""
    wanted = os.environ.get("MOTET_OPS", "auto")
    if wanted not in ("auto", "reference", "cpu"):
        raise ConfigError(f"MOTET_OPS must be auto, cpu or reference, got {wanted!r}")
    if wanted == "reference":
        return ReferenceOps(), PagedAttention()
    from motet.attention.cpu import CpuPagedAttention
    from motet.ops.cpu.backend import CpuOps, is_available

    if is_available():
        ops = CpuOps()
        return ops, CpuPagedAttention(ops.target)
    if wanted == "cpu":
        raise ConfigError("MOTET_OPS=cpu, but this installation has no C++ kernels; install a compiler and Motet again")
    return ReferenceOps(), PagedAttention()


def set_threads(wanted: int | None) -> None:
    """Use `wanted` threads, or as many as `default_threads` finds right for this machine and process."""
    torch.set_num_threads(wanted or default_threads().num_threads)


def plan_runner(config: EngineConfig, checkpoint: Checkpoint, max_model_len: int) -> RunnerPlan:
    """Load the model and find out how much state fits. Raises LoadError, CapacityError."""
    # Loading is many small operations, each shorter than it takes to wake a second thread on a busy machine.
    torch.set_num_threads(1)
    processors = load_processors(config.logits_processors)
    dtype = resolve_dtype(config.model, checkpoint)
    kv_dtype = dtype if config.cache.kv_cache_dtype == "auto" else config.cache.kv_cache_dtype
    ops, attention = choose_backends()
    loaded = load_model(
        checkpoint, ops, attention, dtype, kv_dtype, max_model_len, config.model.scheme, lora=config.lora
    )
    draft = load_draft(config, loaded, ops, attention, dtype, kv_dtype, max_model_len)
    set_threads(config.device.threads)
    specs = dict(loaded.states)
    if draft is not None:
        specs |= {f"{PREFIX}{name}": spec for name, spec in draft.loaded.states.items()}
    groups = group_states(specs, max_model_len)
    budget = state_budget(config, checkpoint, loaded.vocab_size)
    check_budget(config.cache, config.scheduler, groups, max_model_len, budget)
    capacity = plan_capacity(config.cache, config.scheduler, groups, max_model_len, budget)
    check_fits(capacity, groups, available_bytes())
    get_logger().info(
        "weights: %s; %.1f MiB; activations %s; KV cache %s",
        describe_weights(config.model, checkpoint, dtype),
        loaded.num_weight_bytes / 2**20,
        dtype,
        describe_capacity(capacity, groups),
    )
    return RunnerPlan(loaded, ops, attention, groups, capacity, max_model_len, specs, processors, draft)


def load_draft(
    config: EngineConfig,
    target: LoadedModel,
    ops: ReferenceOps,
    attention: AttentionBackend,
    dtype: str,
    kv_dtype: str,
    max_model_len: int,
) -> DraftPlan | None:
    """The model that drafts, if the configuration names one. Raises ConfigError where it has another vocabulary."""
    wanted = config.speculative
    if wanted is None or wanted.method == "ngram":
        return None
    own = msgspec.structs.replace(
        config.model,
        model=wanted.model,
        tokenizer=None,
        revision=wanted.revision,
        quantization=wanted.quantization,
        max_model_len=None,
        hf_overrides={},
    )
    checkpoint = open_checkpoint(own)
    max_len, architectures = max_model_len, DRAFT_HEADS
    if wanted.method == "draft_model":
        max_len, architectures = min(max_len, resolve_max_model_len(own, checkpoint)), ARCHITECTURES
    loaded = load_model(checkpoint, ops, attention, dtype, kv_dtype, max_model_len, own.scheme, architectures)
    if loaded.vocab_size != target.vocab_size:
        raise ConfigError(
            f"speculative_config: the draft model {wanted.model!r} has {loaded.vocab_size} tokens, the model "
            f"{config.model.model!r} has {target.vocab_size}; take one with the same vocabulary"
        )
    return DraftPlan(loaded, max_len, wanted.num_speculative_tokens)


def describe_weights(config: ModelConfig, checkpoint: Checkpoint, dtype: str) -> str:
    """For the log: the types of a GGUF file's tensors, or the dtype; and to what they are quantised."""
    stored = dtype if checkpoint.gguf is None else describe_types(checkpoint.gguf.types)
    return stored if config.scheme is None else f"{stored}, linear layers quantised to {config.scheme}"


def state_budget(config: EngineConfig, checkpoint: Checkpoint, vocab_size: int, num_unread_bytes: int = 0) -> int:
    """Bytes for the KV cache: as asked for, else a share of what is available less what a step needs.

    num_unread_bytes: of weights that are still to be loaded. Raises CapacityError.
    """
    if config.cache.kv_cache_memory_bytes is not None:
        return config.cache.kv_cache_memory_bytes
    share = config.cache.memory_utilization or CPU_SHARE
    values = checkpoint.config
    hidden = int(values.get("hidden_size") or values.get("n_embd") or 0)
    available = max(0, available_bytes() - num_unread_bytes)
    num_drafts = config.speculative.num_speculative_tokens if config.speculative else 0
    needed = activation_bytes(config.scheduler, hidden, inner_width(values, hidden), vocab_size, num_drafts)
    budget = int(available * share) - needed
    if budget <= 0:
        raise CapacityError(
            f"{available / 2**20:.0f} MiB of memory are available, a share of {share} is "
            f"{available * share / 2**20:.0f} MiB, but one step alone needs {needed / 2**20:.0f} MiB; lower "
            "max_num_seqs or max_num_batched_tokens, or raise gpu_memory_utilization"
        )
    return budget


def choose_executor(config: EngineConfig, plan: RunnerPlan, model: Model, states: States) -> Executor:
    """Recorded where the kernels are in use, unless enforce_eager; MOTET_CHECK compares the two in every step."""
    eager = EagerExecutor(model, states)
    if config.device.enforce_eager or plan.ops.name != "cpu":
        return eager
    from motet.attention.cpu import CpuPagedAttention
    from motet.ops.cpu.program import RecordingError
    from motet.runner.recorded import CheckedExecutor, RecordedExecutor

    attention = cast(CpuPagedAttention, plan.attention)  # the one that belongs to these ops
    try:
        recorded = RecordedExecutor(model, states, attention, plan.capacity, plan.groups)
    except RecordingError as error:
        get_logger().warning("the model runs eagerly, which is slower: %s", error)
        return eager
    return CheckedExecutor(recorded, eager) if "MOTET_CHECK" in os.environ else recorded


def choose_sampler(ops: ReferenceOps) -> Sampler:
    """On the kernels where they are in use, with the same tokens as the definition in torch."""
    if ops.name != "cpu":
        return Sampler(ops.greedy)
    from motet.ops.cpu.backend import CpuOps
    from motet.sampling.cpu import CpuSampler

    return CpuSampler(cast(CpuOps, ops).target)


def choose_verifier(config: EngineConfig, sampler: Sampler) -> Verifier:
    if config.speculative is not None and config.speculative.acceptance == "rejection":
        return RejectionAcceptance(sampler)
    return ExactAcceptance(sampler)


def choose_drafter(
    config: EngineConfig, plan: RunnerPlan, states: StateStore, batch: PersistentBatch, sampler: Sampler
) -> Drafter:
    wanted = config.speculative
    if wanted is None:
        return NoDrafter()
    lengths = (AdaptiveLengths if wanted.adaptive else FixedLengths)(wanted.num_speculative_tokens)
    if plan.draft is None:
        return NgramDrafter(wanted.prompt_lookup_min, wanted.prompt_lookup_max, lengths)
    model, max_len = plan.draft.loaded.model, plan.draft.max_len
    chooser = Chooser(sampler, batch.sampling, draws=wanted.acceptance == "exact")
    if wanted.method == "medusa":
        return MedusaDrafter(cast(Medusa, model), plan.loaded.model.last_hidden, chooser, lengths, max_len)
    executor = choose_executor(config, plan, model, DraftStates(states))
    gather = partial(batch.gather_rows, attention=plan.attention)
    return DraftModel(executor, gather, chooser, lengths, max_len, config.scheduler.max_num_batched_tokens)


def build_runner(
    config: EngineConfig, plan: RunnerPlan, grammars: Grammars = NO_GRAMMARS, adapters: AdapterLookup = NO_ADAPTER_STORE
) -> Runner:
    """Allocate the state and assemble the step. adapters: where those are that plans name."""
    states = StateStore(plan.specs, plan.groups, plan.capacity)
    sampler = choose_sampler(plan.ops)
    batch = PersistentBatch(
        config.scheduler.max_num_seqs,
        plan.max_model_len,
        plan.loaded.vocab_size,
        plan.groups,
        plan.capacity.block_size,
        plan.processors,
        grammars,
    )
    runner = Runner(
        batch=batch,
        attention=plan.attention,
        executor=choose_executor(config, plan, plan.loaded.model, states),
        head=AutoregressiveHead(
            plan.loaded.model,
            choose_verifier(config, sampler),
            choose_drafter(config, plan, states, batch, sampler),
            batch,
        ),
        checks="MOTET_CHECK" in os.environ,
        adapters=SlotLoader(plan.loaded.adapters, adapters) if plan.loaded.adapters else NO_ADAPTER_LOADER,
    )
    runner.warm_up(min(WARM_UP_TOKENS, config.scheduler.max_num_batched_tokens, plan.max_model_len - 1))
    return runner
