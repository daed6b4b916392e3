"""The C++ kernels. Tensor arguments are addresses of dense buffers; dtype: 0 float32, 1 bfloat16, 2 float16."""

LINEAR_BLOCK: int  # outputs that packed weights keep side by side

def supported_isas() -> list[str]: ...

class Kernels:
    """The kernels of one instruction set. Raises ValueError where the machine cannot run it."""

    def __init__(self, isa: str) -> None: ...
    @property
    def isa(self) -> str: ...
    def rms_norm(
        self, out: int, x: int, weight: int, num_rows: int, num_cols: int, eps: float, dtype: int, num_threads: int, /
    ) -> None: ...
    def add_rms_norm(
        self,
        out: int,
        sum: int,
        x: int,
        residual: int,
        weight: int,
        num_rows: int,
        num_cols: int,
        eps: float,
        dtype: int,
        num_threads: int,
        /,
    ) -> None: ...
    def linear(
        self,
        out: int,
        x: int,
        weight: int,
        bias: int,
        residual: int,
        num_rows: int,
        num_outputs: int,
        num_inputs: int,
        dtype: int,
        wants_f32: bool,
        num_threads: int,
        /,
    ) -> None: ...
    def pack_linear(self, packed: int, weight: int, num_outputs: int, num_inputs: int, dtype: int, /) -> None: ...
    def unpack_rows(self, out: int, weight: int, rows: int, num_rows: int, num_inputs: int, dtype: int, /) -> None: ...
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
        num_threads: int,
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
        num_threads: int,
        /,
    ) -> None: ...
    def write_kv(
        self,
        k_cache: int,
        v_cache: int,
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
        num_threads: int,
        /,
    ) -> None: ...
    def paged_attention(
        self,
        out: int,
        q: int,
        k_cache: int,
        v_cache: int,
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
        num_threads: int,
        /,
    ) -> None: ...
