"""Matrix products: called as they are, with zeros appended to their factors where that makes the call faster, or as loops.

A product that is over before a library has been called, and one of a vector or of a few terms an element, which waits for
memory alone, is a loop like any other: a generated kernel is launched in a third of the time of a library call, and shares its
launch with what surrounds it.

The vendor's kernels on matrix units are several times slower when a dimension that is contiguous in memory is no multiple
of 16 bytes, as the 50,257 columns of a language model's head. On one H200, rows 8192, width 2048 and that many columns, a loss
and its three products take 44 ms as they are and 9 ms padded. The zeros are appended by loops that may be fused with the
maker of the factor, and cut off by one that is fused with the reader of the product. Columns of a result that leaves the
graph are not padded if the factors are fit as they are: the result would be copied, and a kernel of ours writes such rows
as fast as others.

This module must not decide between a library's kernel and our matrix kernel.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

import minicompile.gpu as gpu
from minicompile.ir.expr import Expr, cast
from minicompile.ir.index import Index, hint
from minicompile.lowering.builder import GraphBuilder, Indices
from minicompile.lowering.extern import OUT_FORMS, call_operator, qualified_name
from minicompile.lowering.reduction import working_dtype
from minicompile.lowering.registry import lowers
from minicompile.lowering.scalar import Scalar, both, index_below, masked, number
from minicompile.lowering.sizes import is_empty, is_one, size_index
from minicompile.lowering.values import HALVES, TensorValue

REASON = "a matrix product"
MULTIPLE_BYTES, PADDED_BYTES = 16, 32
"""What the vendor's kernels need; what is padded is padded to what ours load fastest."""
LEAST_OPERATIONS_A_BYTE = {2: 100, 4: 50}
"""By bytes of an element, operations of the product, which gain, for a byte that is read or written to append zeros and to
cut them off. Products in tf32 gain more of fewer: what they are given is mostly made by a loop that appends them, too."""
SMALL = 2**20
"""Multiplications that a loop does in the time that the host takes to call a library."""
FEW_ROWS = 128
"""Fewer rows than this leave a tile of a library's kernel partly empty, which costs more than rows in another order do."""
RESHAPES = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
SHORT_SUM, SMALL_MATRIX = 4, 8
"""Inner size up to which a product waits for its result to be written, and the sides up to which the matrices of a batch are
too small for a library's tiles, as rotations and covariances are."""
LONGEST_ACROSS = 512
"""Inner size up to which a loop adds up what does not lie side by side in memory; longer ones would take it two kernels."""


@lowers("mm bmm addmm baddbmm")
def lower_matmul(builder: GraphBuilder, *args: Any, **kwargs: Any) -> Any:
    """A matrix product: a loop if it is small, else a library call, with padded factors where that is faster."""
    if is_small(builder, args, kwargs):
        return product_loop(builder, *args, **kwargs)
    if len(args) == 2 and (product := product_of_all_rows(builder, *args)) is not None:
        return product
    stays = builder.config.matmul == "aten" or not is_returned(builder.node)
    sizes = padded_sizes(*args, columns=stays or contiguous_dim(args[-1]) == 1)
    if sizes is None:
        return call_operator(builder, builder.node.target, args, kwargs, REASON)
    m, n, k = sizes
    *added, a, b = args
    factors = [padded(builder, value, (n,)) for value in added]
    factors += [padded(builder, a, (m, k), contiguous_dim(a)), padded(builder, b, (k, n), contiguous_dim(b))]
    product = library_product(builder, builder.node.target, factors, kwargs, "padded", f"{REASON}, of padded sizes")
    return builder.like_node(product.load)


def library_product(
    builder: GraphBuilder, target: Any, factors: Sequence[TensorValue], kwargs: dict[str, Any], suffix: str, reason: str
) -> TensorValue:
    """A library's product of two matrices, the last of `factors`, in memory of its own."""
    *_, a, b = factors
    made = builder.new_buffer((a.sizes[0], b.sizes[1]), a.dtype, suffix=suffix)
    options = tuple((name, builder.argument(value)) for name, value in kwargs.items())
    builder.extern(
        f"torch.ops.{OUT_FORMS[qualified_name(target)]}", builder.argument(tuple(factors)), options, (made,),
        reason=reason, out_argument=True,
    )  # fmt: skip
    return builder.whole(made)


def product_of_all_rows(builder: GraphBuilder, a: TensorValue, b: TensorValue) -> TensorValue | None:
    """A batch of products with one matrix as one product, if the rows of the whole batch lie at equal distances.

    PyTorch makes such a batch of a linear layer over transposed activations, as in `nn.MultiheadAttention` with
    `batch_first` and without gradients: thousands of products of few rows, in several times the time of one.
    """
    if a.rank != 3 or a.strides is None or b.strides is None or b.strides[0].terms or not gpu.holds(a):
        return None
    (batch, rows, inner), (far, near, step) = a.sizes, a.strides
    if is_one(batch) or is_empty((*a.sizes, *b.sizes)):
        return None
    if far == near * rows:
        distance, place = near, lambda i: (i[0] * rows + i[1], i[2])
    elif near == far * batch and hint(rows) < FEW_ROWS:
        distance, place = far, lambda i: (i[1] * batch + i[0], i[2])
    else:
        return None
    all_rows = dataclasses.replace(a, sizes=(batch * rows, inner), strides=(distance, step))
    matrix = dataclasses.replace(b, sizes=b.sizes[1:], strides=b.strides[1:])
    reason = f"{REASON}, of all rows of a batch"
    product = library_product(builder, torch.ops.aten.mm.default, (all_rows, matrix), {}, "rows", reason)
    return product.reindexed((batch, rows, b.sizes[2]), place, copied=True)


def is_small(builder: GraphBuilder, args: tuple[TensorValue, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a product, on a GPU, is little work in all or for each element, and the choice of its kernel is left to the
    compiler."""
    a, b = args[-2:]
    if builder.config.matmul != "auto" or not gpu.holds(a) or not a.dtype.is_floating_point:
        return False
    sizes = [size.constant or 0 for size in (*a.sizes, b.sizes[-1])]
    if not all(sizes) or not all(isinstance(factor, (int, float)) for factor in kwargs.values()) or kwargs.get("alpha") == 0:
        return False  # symbolic or empty, scaled by what varies, or factors that the library does not read
    *batch, m, k, n = sizes
    if k <= SHORT_SUM or math.prod(batch) > 1 and max(m, k, n) <= SMALL_MATRIX:
        return True
    side_by_side = k == 1 or (m == 1 or contiguous_dim(a) == 1) and (n == 1 or contiguous_dim(b) == 0)
    if not side_by_side and k > LONGEST_ACROSS:
        return False
    return math.prod(sizes) <= SMALL or side_by_side and 1 in (m, n)


def product_loop(builder: GraphBuilder, *args: TensorValue, alpha: float = 1, beta: float = 1) -> TensorValue:
    """alpha · a b + beta · addend, added up in fp32 where the factors are 16-bit."""
    *added, a, b = args
    wide = working_dtype(a.dtype)

    def multiplied(indices: Indices) -> Expr:
        *batch, m, k, n = indices
        return (Scalar(a.load((*batch, m, k))).to(wide) * Scalar(b.load((*batch, k, n))).to(wide)).expr

    total = builder.reduce("sum", (*a.sizes, b.sizes[-1]), (a.rank - 1,), wide, multiplied, suffix="sum")

    def finished(indices: Indices) -> Expr:
        value = scaled(total.load(indices), alpha)
        for addend in added if beta else ():
            value = value + scaled(cast(addend.load_broadcast(indices), wide), beta)
        return value.expr

    return builder.like_node(finished)


def scaled(value: Expr, factor: float) -> Scalar:
    """`factor` times a value."""
    return Scalar(value) if factor == 1 else Scalar(value) * factor


def is_returned(node: Node) -> bool:
    """Whether the graph returns the result of a node, or its elements under another shape."""
    return any(user.op == "output" or user.target in RESHAPES and is_returned(user) for user in node.users)


def padded_sizes(*args: TensorValue, columns: bool) -> tuple[Index, Index, Index] | None:
    """Rows, columns (if they may be) and inner size to which a product is to be padded, if it is."""
    *added, a, b = args
    in_tf32 = a.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    if a.rank != 2 or not gpu.holds(a) or not (in_tf32 or a.dtype in HALVES) or any(value.rank != 1 for value in added):
        return None
    width = a.dtype.itemsize
    multiple, to, least = MULTIPLE_BYTES // width, PADDED_BYTES // width, LEAST_OPERATIONS_A_BYTE[width]
    numbers = [size.constant for size in (a.sizes[0], b.sizes[1], a.sizes[1])]
    if not all(numbers):  # symbolic, or empty
        return None
    m, n, k = map(int, numbers)  # type: ignore[arg-type]  # none is None
    across = contiguous_dim(a) == 1 or contiguous_dim(b) == 0
    sides = ((m, contiguous_dim(a) == 0), (n, columns), (k, across))
    above = [-size % to if adjacent and size % multiple else 0 for size, adjacent in sides]
    elements = (m * k) * bool(above[0] or above[2]) + (k * n) * bool(above[1] or above[2]) + (m * n) * bool(above[1])
    if not any(above) or 2 * m * n * k < least * 2 * width * elements:
        return None
    if any(tuple(value.sizes) != (b.sizes[1],) for value in added):
        return None
    return size_index(m + above[0]), size_index(n + above[1]), size_index(k + above[2])


def contiguous_dim(value: TensorValue) -> int:
    """The dimension of a matrix, or of one in a batch, along which its elements lie side by side, or will once it is written."""
    if value.strides is None or value.strides[-1].constant == 1:
        return 1
    return 0 if value.strides[-2].constant == 1 else 1


def padded(builder: GraphBuilder, value: TensorValue, sizes: Indices, contiguous: int = 1) -> TensorValue:
    """`value` with zeros appended up to `sizes`, the contiguous dimension staying so; made once for all its products."""
    if value.sizes == sizes:
        return value
    if contiguous == 0:
        return turned(padded(builder, turned(value), sizes[::-1]))

    def body(indices: Indices) -> Expr:
        inside = both(*(index_below(index, size) for index, size in zip(indices, value.sizes, strict=True)))
        return masked(inside, value.load(indices), number(0, value.dtype))

    key = ("padded", value, sizes)
    if key not in builder.shared:
        builder.shared[key] = builder.pointwise(sizes, value.dtype, body, suffix="padded")
    return builder.shared[key]


def turned(value: TensorValue) -> TensorValue:
    """The transposed view of a matrix with linear access."""
    assert value.strides is not None
    return dataclasses.replace(value, sizes=value.sizes[::-1], strides=value.strides[::-1])
