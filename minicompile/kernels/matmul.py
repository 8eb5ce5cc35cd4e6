"""Matrix products: alpha · A B + beta · addend, one or a batch, any strides, with a free epilogue.

Two kernels. `matmul_kernel` gives each program one tile of C and one stretch of K, and loads by pointers, so that any
strides work; with SPLIT_K > 1 the stretches' partial sums go to fp32 memory and `matmul_reduce_kernel` adds them and
runs the epilogue. `matmul_persistent_kernel` starts one program per processor, which walks over the tiles, and loads
by TMA descriptors (16-byte aligned operands only). Both accumulate in fp32 (int32 for int8) and visit tiles in groups
of GROUP_M rows, so that programs that run together share rows of A and columns of B in the L2 cache (the order of
Triton's matmul tutorial).

When C has few rows, the transposed product is computed: the weights' rows then fill the matrix units' 64 rows, and
the few rows of A become a narrow second operand (SWAPPED).

The epilogue sees the fp32 accumulator: alpha, an addend of any strides (a bias is one of stride 0), and
then EPILOGUE, a `@triton.jit` function `(values, batch, rows, cols, in_range, extra) -> values` of the caller's,
whose `rows` and `cols` broadcast to the tile in either order and whose `extra` is a tuple of pointers and numbers.

Nothing is fused into the loads: Triton 3.6 races when the left operand of a pipelined product is computed in registers.
This module must not choose between itself and the vendor's library (`matmul_model.py`).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import minicompile.gpu as gpu
from minicompile.kernels.attention_problem import dot_precision
from minicompile.kernels.configs import MatmulConfig, matmul_tile
from minicompile.kernels.interpret import launch
from minicompile.kernels.matmul_model import MatmulProblem, rank_configs


@triton.jit
def identity(values, batch, rows, cols, in_range, extra):
    """The empty epilogue."""
    return values


@triton.jit
def finish_tile(
    values, c_ptr, addend_ptr, extra, batch, first_row, first_col, M, N, alpha, beta, c_strides, addend_strides,
    ROWS: tl.constexpr, COLS: tl.constexpr, HAS_ADDEND: tl.constexpr, EPILOGUE: tl.constexpr, SWAPPED: tl.constexpr,
    TMA_STORE: tl.constexpr,
):  # fmt: skip
    """Epilogue and store of one tile; with TMA_STORE, `c_ptr` is a descriptor of (batch, M, N)."""
    rows = (first_row + tl.arange(0, ROWS))[:, None]
    cols = (first_col + tl.arange(0, COLS))[None, :]
    in_range = (rows < M) & (cols < N)
    wide_rows, wide_cols, wide_batch = rows.to(tl.int64), cols.to(tl.int64), tl.cast(batch, tl.int64)
    if values.dtype == tl.float32:
        values = values * alpha
        if HAS_ADDEND:
            offsets = wide_batch * addend_strides[0] + wide_rows * addend_strides[1] + wide_cols * addend_strides[2]
            values += beta * tl.load(addend_ptr + offsets, mask=in_range, other=0.0).to(tl.float32)
    if SWAPPED:
        values = EPILOGUE(values, batch, cols, rows, in_range, extra)
    else:
        values = EPILOGUE(values, batch, rows, cols, in_range, extra)
    if TMA_STORE:
        c_ptr.store([tl.cast(batch, tl.int32), first_row, first_col], values.to(c_ptr.dtype).reshape([1, ROWS, COLS]))
    else:
        pointers = c_ptr + wide_batch * c_strides[0] + wide_rows * c_strides[1] + wide_cols * c_strides[2]
        tl.store(pointers, values.to(c_ptr.dtype.element_ty), mask=in_range)


@triton.jit
def tile_of(index, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Row and column of the tile that comes at `index` in the grouped order."""
    across = tl.cdiv(N, BLOCK_N)
    group = index // (GROUP_M * across)
    first = group * GROUP_M
    height = tl.minimum(tl.cdiv(M, BLOCK_M) - first, GROUP_M)
    within = index % (GROUP_M * across)
    return first + within % height, within // height


@triton.jit
def load_step(pointers, in_range, inner, stop, EVEN_K: tl.constexpr):
    """The part of an operand that one step of K needs, zeros outside."""
    if EVEN_K:
        values = tl.load(pointers, mask=in_range, other=0)
    else:
        values = tl.load(pointers, mask=in_range & (inner < stop), other=0)
    return values


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, addend_ptr, extra, M, N, K, stretch, alpha, beta, a_strides, b_strides, stride_cs, c_strides,
    addend_strides, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, HAS_ADDEND: tl.constexpr, EPILOGUE: tl.constexpr, SWAPPED: tl.constexpr,
    PRECISION: tl.constexpr, PEEL: tl.constexpr,
):  # fmt: skip
    """One program: one tile of C over one stretch of K.

    PEEL computes the first step outside the loop: with eight warps, ptxas otherwise serialises every product of
    Triton 3.6.
    """
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    split = tl.program_id(1)
    tile_m, tile_n = tile_of(tl.program_id(0) % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    inner = tl.arange(0, BLOCK_K)
    start = split * stretch
    stop = tl.minimum(K, start + stretch)
    first = tl.cast(start, tl.int64)
    a_pointers = a_ptr + batch * a_strides[0] + first * a_strides[2]
    a_pointers += rows.to(tl.int64) * a_strides[1] + inner[None, :] * a_strides[2]
    b_pointers = b_ptr + batch * b_strides[0] + first * b_strides[1]
    b_pointers += inner[:, None] * b_strides[1] + cols.to(tl.int64) * b_strides[2]
    accumulator = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if a_ptr.dtype.element_ty == tl.int8 else tl.float32)
    if PEEL:
        a = load_step(a_pointers, rows < M, start + inner[None, :], stop, EVEN_K)
        b = load_step(b_pointers, cols < N, start + inner[:, None], stop, EVEN_K)
        accumulator = tl.dot(a, b, accumulator, input_precision=PRECISION, out_dtype=accumulator.dtype)
        a_pointers += BLOCK_K * a_strides[2]
        b_pointers += BLOCK_K * b_strides[1]
        start += BLOCK_K
    for k in tl.range(start, stop, BLOCK_K):
        a = load_step(a_pointers, rows < M, k + inner[None, :], stop, EVEN_K)
        b = load_step(b_pointers, cols < N, k + inner[:, None], stop, EVEN_K)
        accumulator = tl.dot(a, b, accumulator, input_precision=PRECISION, out_dtype=accumulator.dtype)
        a_pointers += BLOCK_K * a_strides[2]
        b_pointers += BLOCK_K * b_strides[1]
    part = c_ptr + split.to(tl.int64) * stride_cs
    finish_tile(
        accumulator, part, addend_ptr, extra, batch, tile_m * BLOCK_M, tile_n * BLOCK_N, M, N, alpha, beta, c_strides,
        addend_strides, BLOCK_M, BLOCK_N, HAS_ADDEND, EPILOGUE, SWAPPED, False)  # fmt: skip


@triton.jit
def matmul_persistent_kernel(
    a_desc, b_desc, c_ptr, addend_ptr, extra, batches, M, N, K, alpha, beta, c_strides, addend_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, HALVES: tl.constexpr, TMA_STORE: tl.constexpr,
    HAS_ADDEND: tl.constexpr, EPILOGUE: tl.constexpr, SWAPPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: every so many-th tile of C. Descriptors are (batch, M, K) and (batch, K, N), or transposed."""
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for index in tl.range(tl.program_id(0), tiles * batches, tl.num_programs(0)):
        batch = index // tiles
        tile_m, tile_n = tile_of(index % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        accumulator = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if a_desc.dtype == tl.int8 else tl.float32)
        for k in tl.range(0, K, BLOCK_K):
            if A_BY_COLUMNS:
                a = a_desc.load([batch, k, tile_m * BLOCK_M]).reshape([BLOCK_K, BLOCK_M]).trans(1, 0)
            else:
                a = a_desc.load([batch, tile_m * BLOCK_M, k]).reshape([BLOCK_M, BLOCK_K])
            if B_BY_COLUMNS:
                b = b_desc.load([batch, tile_n * BLOCK_N, k]).reshape([BLOCK_N, BLOCK_K]).trans(1, 0)
            else:
                b = b_desc.load([batch, k, tile_n * BLOCK_N]).reshape([BLOCK_K, BLOCK_N])
            accumulator = tl.dot(a, b, accumulator, input_precision=PRECISION, out_dtype=accumulator.dtype)
        row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
        if HALVES:
            halves = tl.permute(tl.reshape(accumulator, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1])
            left, right = tl.split(halves)
            finish_tile(
                left, c_ptr, addend_ptr, extra, batch, row, col, M, N, alpha, beta, c_strides, addend_strides, BLOCK_M,
                BLOCK_N // 2, HAS_ADDEND, EPILOGUE, SWAPPED, TMA_STORE)  # fmt: skip
            finish_tile(
                right, c_ptr, addend_ptr, extra, batch, row, col + BLOCK_N // 2, M, N, alpha, beta, c_strides,
                addend_strides, BLOCK_M, BLOCK_N // 2, HAS_ADDEND, EPILOGUE, SWAPPED, TMA_STORE)  # fmt: skip
        else:
            finish_tile(
                accumulator, c_ptr, addend_ptr, extra, batch, row, col, M, N, alpha, beta, c_strides, addend_strides,
                BLOCK_M, BLOCK_N, HAS_ADDEND, EPILOGUE, SWAPPED, TMA_STORE)  # fmt: skip


@triton.jit
def matmul_reduce_kernel(
    parts_ptr, c_ptr, addend_ptr, extra, M, N, splits, alpha, beta, stride_ps, c_strides, addend_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_ADDEND: tl.constexpr, EPILOGUE: tl.constexpr,
    SWAPPED: tl.constexpr,
):  # fmt: skip
    """One program: one tile of C from the partial sums (contiguous: split, batch, M, N)."""
    across = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * across
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    row, col = tile // across * BLOCK_M, tile % across * BLOCK_N
    rows = (row + tl.arange(0, BLOCK_M))[:, None]
    cols = (col + tl.arange(0, BLOCK_N))[None, :]
    pointers = parts_ptr + batch * M * N + rows.to(tl.int64) * N + cols
    total = tl.zeros([BLOCK_M, BLOCK_N], parts_ptr.dtype.element_ty)
    for _ in tl.range(0, splits):
        total += tl.load(pointers, mask=(rows < M) & (cols < N), other=0)
        pointers += stride_ps
    finish_tile(
        total, c_ptr, addend_ptr, extra, batch, row, col, M, N, alpha, beta, c_strides, addend_strides, BLOCK_M,
        BLOCK_N, HAS_ADDEND, EPILOGUE, SWAPPED, False)  # fmt: skip


def matmul(
    a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0,
    out_dtype: torch.dtype | None = None, precision: str = "ieee", epilogue: Any = None,
    extra: tuple[Any, ...] = (), out: torch.Tensor | None = None, config: MatmulConfig | None = None,
) -> torch.Tensor:  # fmt: skip
    """alpha · a @ b + beta · addend, then `epilogue`; a is (M, K) or (batch, M, K), b likewise. No
    autograd.

    Args:
        addend: broadcasts to the result: a bias, a residual, the first argument of `addmm` and `baddbmm`.
        precision: how fp32 operands are multiplied: "ieee", "tf32", "tf32x3" or "bf16x6".
        epilogue: see the module; `extra` is its last argument.
        out: where to put the result, any strides.
        config: tiles; chosen by `matmul_model` if not given.
    """
    _check(a, b, addend)
    flat = a.dim() == 2
    a, b = (a[None], b[None]) if flat else (a, b)
    batch, m, k = a.shape
    n = b.shape[2]
    if out is None:
        out_dtype = out_dtype or (torch.int32 if a.dtype == torch.int8 else a.dtype)
        out = a.new_empty((batch, m, n), dtype=out_dtype)
    c = out[None] if out.dim() == 2 else out
    if c.numel():
        addend = c if addend is None else addend.expand(c.shape)
        has_addend = addend is not c and beta != 0.0
        aligned, by_vectors = _aligned(a, b), _aligned(a, b, num_bytes=16 * a.element_size())
        problem = MatmulProblem(
            batch, m, n, k, a.element_size(), a.dtype == torch.float32, precision, aligned, by_vectors=by_vectors
        )
        config = config or (rank_configs(problem, 1)[0][0] if gpu.holds(a) else interpreted_config(m, n, k))
        if config.swapped:
            a, b, c, addend = (t.transpose(1, 2) for t in (b, a, c, addend))
        slots = {"HAS_ADDEND": has_addend, "EPILOGUE": epilogue or identity, "SWAPPED": config.swapped}
        slots |= {"enable_fp_fusion": False}  # an epilogue rounds products before it adds to them, as eager does
        if config.tma and _aligned(a, b):
            _persistent(a, b, c, addend, extra, alpha, beta, precision, config, slots)
        else:
            _by_pointers(a, b, c, addend, extra, alpha, beta, precision, config, slots)
    return out[0] if flat and out.dim() == 3 else out


def fused_matmul(
    out: torch.Tensor, addend: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, *extra: torch.Tensor,
    tile: str, alpha: float = 1.0, beta: float = 1.0, epilogue: Any = None,
) -> tuple[()]:  # fmt: skip
    """`matmul` into `out`, as compiled graphs call it: fp32 products by the user's setting, the tile as text."""
    config = matmul_tile(tile) if gpu.holds(a) else None
    matmul(
        a, b, addend, alpha=alpha, beta=beta, precision=dot_precision(a), epilogue=epilogue, extra=extra, out=out,
        config=config,
    )  # fmt: skip
    return ()


def interpreted_config(m: int, n: int, k: int) -> MatmulConfig:
    """Tiles for the interpreter: as large as the problem."""
    return MatmulConfig(min(m, 2048), min(n, 2048), max(1, min(k, 2048)), 1, 1)


def _by_pointers(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, addend: torch.Tensor, extra: tuple[Any, ...], alpha: float,
    beta: float, precision: str, config: MatmulConfig, slots: dict[str, Any],
) -> None:  # fmt: skip
    (batch, m, k), n = a.shape, b.shape[2]
    stretch = triton.cdiv(triton.cdiv(k, config.split_k), config.block_k) * config.block_k
    splits = triton.cdiv(k, stretch) if k else 1
    tiles = triton.cdiv(m, config.block_m) * triton.cdiv(n, config.block_n) * batch
    target, first_slots = c[None], slots
    if splits > 1:
        kind = torch.int32 if a.dtype == torch.int8 else torch.float32
        target = a.new_empty((splits, batch, m, n), dtype=kind)
        first_slots = slots | {"HAS_ADDEND": False, "EPILOGUE": identity, "SWAPPED": False}
    launch(
        matmul_kernel, (tiles, splits), a, b, target, addend, () if splits > 1 else extra, m, n, k, stretch,
        1.0 if splits > 1 else alpha, beta, a.stride(), b.stride(), target.stride(0), target.stride()[1:], addend.stride(),
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, GROUP_M=config.group_m,
        EVEN_K=k > 0 and k % config.block_k == 0, PEEL=config.warps > 4, PRECISION=precision, num_warps=config.warps,
        num_stages=config.stages,
        **first_slots,
    )  # fmt: skip
    if splits > 1:
        block_m, block_n = (m, n) if not gpu.holds(c) else (16, 128) if n >= 128 else (128, 16)
        grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n) * batch,)
        launch(
            matmul_reduce_kernel, grid, target, c, addend, extra, m, n, splits, alpha, beta, target.stride(0),
            c.stride(), addend.stride(), BLOCK_M=block_m, BLOCK_N=block_n, num_warps=4, **slots,
        )  # fmt: skip


def _persistent(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, addend: torch.Tensor, extra: tuple[Any, ...], alpha: float,
    beta: float, precision: str, config: MatmulConfig, slots: dict[str, Any],
) -> None:  # fmt: skip
    (batch, m, k), n = a.shape, b.shape[2]
    a_by_columns, b_by_columns = a.stride(2) != 1, b.stride(2) != 1
    a_desc = _descriptor(a, config.block_m, config.block_k, a_by_columns)
    b_desc = _descriptor(b, config.block_k, config.block_n, b_by_columns)
    tma_store = _aligned(c) and c.stride(2) == 1 and c.dtype.itemsize == 2
    target = _descriptor(c, config.block_m, config.block_n // (1 + config.halves), False) if tma_store else c
    tiles = triton.cdiv(m, config.block_m) * triton.cdiv(n, config.block_n) * batch
    programs = gpu.processors(a)
    launch(
        matmul_persistent_kernel, (min(tiles, programs),), a_desc, b_desc, target, addend, extra, batch, m, n, k, alpha,
        beta,
        c.stride(), addend.stride(), BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        GROUP_M=config.group_m, A_BY_COLUMNS=a_by_columns, B_BY_COLUMNS=b_by_columns, HALVES=config.halves,
        TMA_STORE=tma_store, PRECISION=precision, num_warps=config.warps, num_stages=config.stages, **slots,
    )  # fmt: skip


def _descriptor(tensor: torch.Tensor, rows: int, columns: int, by_columns: bool) -> TensorDescriptor:
    if by_columns:
        tensor, rows, columns = tensor.transpose(1, 2), columns, rows
    strides = list(tensor.stride())
    if tensor.shape[0] == 1:
        strides[0] = max(strides[0], tensor.shape[1] * strides[1])
    return TensorDescriptor(tensor, list(tensor.shape), strides, [1, rows, columns])


def _aligned(*operands: torch.Tensor, num_bytes: int = 16) -> bool:
    """Whether elements are adjacent along one dimension and all else is a multiple of so many bytes: TMA needs 16."""
    for tensor in operands:
        steps = [tensor.stride(1), tensor.stride(2)]
        if 1 not in steps or 0 in tensor.shape or tensor.data_ptr() % 16:
            return False
        outer = [steps[0] if steps[1] == 1 else steps[1]] + ([tensor.stride(0)] if tensor.shape[0] > 1 else [])
        if any(step <= 0 or step * tensor.element_size() % num_bytes for step in outer):
            return False
    return True


def _check(a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor | None) -> None:
    """Raise ValueError for what the kernels do not take."""
    problems = []
    if a.dim() not in (2, 3) or b.dim() != a.dim() or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        problems.append(f"shapes {tuple(a.shape)} and {tuple(b.shape)} do not go together")
    if a.dtype != b.dtype or a.dtype not in (torch.bfloat16, torch.float16, torch.float32, torch.int8):
        problems.append(f"operands must share one dtype of bf16, fp16, fp32, int8, not {a.dtype} and {b.dtype}")
    if a.device != b.device:
        problems.append(f"operands are on {a.device} and {b.device}")
    if a.dtype == torch.int8 and addend is not None:
        problems.append("int8 products take no addend; use an epilogue")
    if problems:
        raise ValueError("matmul: " + "; ".join(problems))
