"""Chooses the parts of a runner and puts them together: the only place that knows which there are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import cast

import torch

from motet.attention.paged import PagedAttention
from motet.attention.protocol import AttentionBackend
from motet.core.config import EngineConfig, ModelConfig
from motet.core.errors import CapacityError, ConfigError
from motet.core.logs import get_logger
from motet.core.state import Capacity, StateGroup, group_states
from motet.lora.loader import SlotLoader
from motet.lora.store import NO_ADAPTER_STORE, AdapterLookup
from motet.models.checkpoint import Checkpoint
from motet.models.gguf import describe_types
from motet.models.loader import LoadedModel, load_model, resolve_dtype
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
from motet.sampling.sampler import Sampler
from motet.tensors.states import StateStore

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class RunnerPlan:
    """A loaded model and the room for its state, before any of that room is taken."""

    loaded: LoadedModel
    ops: ReferenceOps
    attention: AttentionBackend
    groups: tuple[StateGroup, ...]
    capacity: Capacity
    max_model_len: int


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
    dtype = resolve_dtype(config.model, checkpoint)
    kv_dtype = dtype if config.cache.kv_cache_dtype == "auto" else config.cache.kv_cache_dtype
    ops, attention = choose_backends()
    loaded = load_model(checkpoint, ops, attention, dtype, kv_dtype, max_model_len, config.model.scheme, config.lora)
    set_threads(config.device.threads)
    groups = group_states(loaded.states, max_model_len)
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
    return RunnerPlan(loaded, ops, attention, groups, capacity, max_model_len)


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
    needed = activation_bytes(config.scheduler, hidden, inner_width(values, hidden), vocab_size)
    budget = int(available * share) - needed
    if budget <= 0:
        raise CapacityError(
            f"{available / 2**20:.0f} MiB of memory are available, a share of {share} is "
            f"{available * share / 2**20:.0f} MiB, but one step alone needs {needed / 2**20:.0f} MiB; lower "
            "max_num_seqs or max_num_batched_tokens, or raise gpu_memory_utilization"
        )
    return budget


def choose_executor(config: EngineConfig, plan: RunnerPlan, states: StateStore) -> Executor:
    """Recorded where the kernels are in use, unless enforce_eager; MOTET_CHECK compares the two in every step."""
    eager = EagerExecutor(plan.loaded.model, states)
    if config.device.enforce_eager or plan.ops.name != "cpu":
        return eager
    from motet.attention.cpu import CpuPagedAttention
    from motet.ops.cpu.program import RecordingError
    from motet.runner.recorded import CheckedExecutor, RecordedExecutor

    attention = cast(CpuPagedAttention, plan.attention)  # the one that belongs to these ops
    try:
        recorded = RecordedExecutor(plan.loaded.model, states, attention, plan.groups, plan.capacity.block_size)
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


def build_runner(config: EngineConfig, plan: RunnerPlan, adapters: AdapterLookup = NO_ADAPTER_STORE) -> Runner:
    """Allocate the state and assemble the step. adapters: where those are that plans name."""
    states = StateStore(plan.loaded.states, plan.groups, plan.capacity)
    batch = PersistentBatch(
        config.scheduler.max_num_seqs,
        plan.max_model_len,
        plan.loaded.vocab_size,
        plan.groups,
        plan.capacity.block_size,
    )
    runner = Runner(
        batch=batch,
        attention=plan.attention,
        executor=choose_executor(config, plan, states),
        head=AutoregressiveHead(plan.loaded.model, choose_sampler(plan.ops), batch),
        checks="MOTET_CHECK" in os.environ,
        adapters=SlotLoader(plan.loaded.adapters, adapters) if plan.loaded.adapters else NO_ADAPTER_LOADER,
    )
    runner.warm_up(min(WARM_UP_TOKENS, config.scheduler.max_num_batched_tokens, plan.max_model_len - 1))
    return runner
