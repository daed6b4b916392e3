"""The C++ kernels. Tensor arguments are addresses of dense buffers; dtype: 0 float32, 1 bfloat16, 2 float16,
and of a cache 3 int8, 4 float8_e4m3fn."""

from collections.abc import Sequence

LINEAR_BLOCK: int  # outputs that packed weights keep side by side
QUANT_BLOCK: int  # the same of quantised weights
GROUP_META_BYTES: int  # that follow the integers of a group of quantised activations

def supported_isas() -> list[str]: ...
def count_of_symbol(symbol: int, times: int, /) -> int: ...

class Calls:
    """The kernels of one instruction set."""

    @property
    def isa(self) -> str: ...
    def rms_norm(
        self, out: int, x: int, weight: int, num_rows: int, num_cols: int, eps: float, dtype: int, /
    ) -> None: ...
    def layer_norm(
        self, out: int, x: int, weight: int, bias: int, num_rows: int, num_cols: int, eps: float, dtype: int, /
    ) -> None: ...
    def linear(
        self,
        out: int,
        bias: int,
        residual: int,
        stride: int,
        first_column: int,
        dtype: int,
        wants_f32: bool,
        x: int,
        weight: int,
        num_rows: int,
        num_outputs: int,
        num_inputs: int,
        weight_dtype: int,
        /,
    ) -> None: ...
    def pack_linear(self, packed: int, weight: int, num_outputs: int, num_inputs: int, dtype: int, /) -> None: ...
    def unpack_rows(
        self,
        out: int,
        weight: int,
        rows: int,
        num_rows: int,
        num_inputs: int,
        scale: float,
        dtype: int,
        weight_dtype: int,
        /,
    ) -> None: ...
    def quantize_rows(self, out: int, x: int, num_rows: int, num_cols: int, group: int, dtype: int, /) -> None: ...
    def quant_linear(
        self,
        out: int,
        bias: int,
        residual: int,
        stride: int,
        first_column: int,
        dtype: int,
        wants_f32: bool,
        rows: int,
        weight: int,
        num_rows: int,
        num_outputs: int,
        num_inputs: int,
        group: int,
        kind: int,
        /,
    ) -> None: ...
    def packed_bytes(self, kind: int, num_outputs: int, num_inputs: int, group: int, /) -> int: ...
    def pack_quantized(
        self, packed: int, source: int, num_outputs: int, num_inputs: int, group: int, kind: int, dtype: int, /
    ) -> None: ...
    def unpack_quantized(
        self,
        out: int,
        weight: int,
        rows: int,
        num_rows: int,
        num_inputs: int,
        group: int,
        scale: float,
        kind: int,
        dtype: int,
        /,
    ) -> None: ...
    def activation(
        self,
        out: int,
        x: int,
        num_rows: int,
        num_cols: int,
        is_gated: bool,
        kind: int,
        cap: float,
        dtype: int,
        /,
    ) -> None: ...
    def qkv_heads(
        self,
        q: int,
        k: int,
        v: int,
        qkv: int,
        positions: int,
        cos: int,
        sin: int,
        q_norm: int,
        k_norm: int,
        num_tokens: int,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        half: int,
        q_norm_size: int,
        k_norm_size: int,
        eps: float,
        dtype: int,
        /,
    ) -> None: ...
    def write_kv(
        self,
        k_cache: int,
        v_cache: int,
        k_scale: int,
        v_scale: int,
        k: int,
        v: int,
        slots: int,
        num_tokens: int,
        num_kv_heads: int,
        head_size: int,
        k_token_stride: int,
        k_head_stride: int,
        v_token_stride: int,
        v_head_stride: int,
        dtype: int,
        cache_dtype: int,
        /,
    ) -> None: ...
    def paged_attention(
        self,
        out: int,
        q: int,
        k_cache: int,
        v_cache: int,
        k_scale: int,
        v_scale: int,
        rows: int,
        block_table: int,
        alibi_slopes: int,
        sinks: int,
        num_rows: int,
        table_stride: int,
        block_size: int,
        window: int,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        q_token_stride: int,
        q_head_stride: int,
        scale: float,
        soft_cap: float,
        dtype: int,
        cache_dtype: int,
        /,
    ) -> None: ...
    def route(
        self,
        weights: int,
        places: int,
        experts: int,
        tokens: int,
        logits: int,
        num_tokens: int,
        num_experts: int,
        top_k: int,
        renormalize: bool,
        dtype: int,
        /,
    ) -> None: ...
    def expert_linear(
        self,
        out: int,
        stride: int,
        first_column: int,
        dtype: int,
        x: int,
        weights: int,
        experts: int,
        num_rows: int,
        num_outputs: int,
        num_inputs: int,
        weight_dtype: int,
        /,
    ) -> None: ...
    def quant_expert_linear(
        self,
        out: int,
        stride: int,
        first_column: int,
        dtype: int,
        rows: int,
        weights: int,
        experts: int,
        num_rows: int,
        num_outputs: int,
        num_inputs: int,
        group: int,
        kind: int,
        /,
    ) -> None: ...
    def combine_experts(
        self, out: int, x: int, weights: int, places: int, num_tokens: int, num_cols: int, top_k: int, dtype: int, /
    ) -> None: ...
    def lora_shrink(
        self,
        out: int,
        x: int,
        a: int,
        scales: int,
        ranks: int,
        tokens: int,
        slots: int,
        num_rows: int,
        num_parts: int,
        max_rank: int,
        num_inputs: int,
        dtype: int,
        /,
    ) -> None: ...
    def lora_expand(
        self,
        y: int,
        x: int,
        b: int,
        ends: int,
        ranks: int,
        tokens: int,
        slots: int,
        num_rows: int,
        num_parts: int,
        max_rank: int,
        num_outputs: int,
        dtype: int,
        /,
    ) -> None: ...
    def add(self, out: int, x: int, y: int, num_rows: int, num_cols: int, dtype: int, /) -> None: ...
    def greedy(self, token_ids: int, scores: int, num_rows: int, num_cols: int, /) -> None: ...
    def draw(
        self,
        token_ids: int,
        scores: int,
        rows: int,
        temperature: int,
        log_min_p: int,
        top_k: int,
        top_p: int,
        keys: int,
        num_rows: int,
        num_cols: int,
        /,
    ) -> None: ...
    def describe(
        self,
        values: int,
        ids: int,
        ranks: int,
        logits: int,
        token_ids: int,
        num_top: int,
        num_rows: int,
        num_cols: int,
        width: int,
        /,
    ) -> None: ...
    def select_rows(self, out: int, x: int, rows: int, num_rows: int, row_bytes: int, /) -> None: ...

class Kernels(Calls):
    """Runs each call at once. Raises ValueError where the machine cannot run the instruction set."""

    num_threads: int

    def __init__(self, isa: str) -> None: ...

class Recorder(Calls):
    """Appends each call to a program: see csrc/program.h."""

    def __init__(self, isa: str) -> None: ...
    def add_input(self) -> int: ...
    def add_buffer(self, num_rows: int, row_bytes: int, /) -> int: ...
    def keep(self, reference: int, /) -> None: ...
    def finish(self, num_symbols: int, /) -> None: ...
    @property
    def num_nodes(self) -> int: ...
    def node_name(self, node: int, /) -> str: ...
    def first_use(self, reference: int, /) -> int: ...
    def num_arena_bytes(self, counts: Sequence[int], apart: bool, /) -> int: ...
    def place_of(self, reference: int, counts: Sequence[int], apart: bool, /) -> int: ...
    def time_nodes(
        self, counts: Sequence[int], inputs: Sequence[int], arena: int, num_threads: int, /
    ) -> list[float]: ...
    def replay(
        self,
        counts: Sequence[int],
        inputs: Sequence[int],
        arena: int,
        num_threads: int,
        apart: bool,
        poisons: bool,
        /,
    ) -> None: ...
