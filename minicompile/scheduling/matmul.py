"""Matrix products: to the vendor's library or to our kernel, and which pointwise loops our kernel takes as epilogues.

Who computes a product is asked of a `Chooser`, which the pipeline passes in; this module must not know tiles or rates.
A loop becomes an epilogue when it runs once over every element of the product, at the element's own place.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch

import minicompile.gpu as gpu
from minicompile.ir.expr import Apply, Constant, IndexValue, Load, Random, indirect_values, rewrite, walk
from minicompile.ir.index import ZERO, Atom, Axis, Index, as_index, coefficient_of, product, upper_bound
from minicompile.ir.loops import PRODUCT, Buffer, BufferView, ExternKernel, Loop, Operation, num_bytes
from minicompile.scheduling.dependencies import Dependences, find_dependences, is_scatter
from minicompile.scheduling.reindexing import flatten, match_axes, move
from minicompile.scheduling.traffic import loop_flops

TARGETS = {f"torch.ops.aten.{name}.out": name for name in ("mm", "bmm", "addmm", "baddbmm")}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OUR_KERNEL = "kernels.fused_matmul"
LARGEST_OFFSET = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class MatmulFacts:
    """What a chooser knows: sizes, dtype, whether the operands' rows start at multiples of 16 bytes, and of 16 elements, and of
    an epilogue the traffic that it saves, its arithmetic, and the bytes of the product if that is stored too."""

    batch: int
    m: int
    n: int
    k: int
    dtype: torch.dtype
    aligned: bool
    bytes_saved: int = 0
    flops: int = 0
    bytes_kept: int = 0
    on_gpu: bool = True
    by_vectors: bool = True


Chooser = Callable[[MatmulFacts], tuple[str | None, str]]
"""The tile of our kernel (`None`: the vendor's library), and the reason."""


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """A loop over the product's axes, where it came from, the traffic it saves, and the bytes of the product if that is
    needed too."""

    loop: Loop
    position: int
    bytes_saved: int
    bytes_kept: int


def route_matmuls(
    operations: Sequence[Operation], buffers: Mapping[str, Buffer], outputs: frozenset[str], choose: Chooser
) -> tuple[Operation, ...]:
    """The operations with every product routed, and with the loops gone that became epilogues."""
    routed: list[Operation | None] = list(operations)
    dependences = find_dependences(operations)
    for position in reversed(range(len(operations))):
        step = operations[position]
        if not isinstance(step, ExternKernel) or step.target not in TARGETS:
            continue
        facts = _facts(step)
        if isinstance(facts, str):
            routed[position] = dataclasses.replace(step, reason=f"{step.reason}; the vendor's library: {facts}")
            continue
        epilogue = _epilogue(routed, position, dependences, buffers, outputs)
        if epilogue is not None:
            facts = dataclasses.replace(facts, bytes_saved=epilogue.bytes_saved, flops=loop_flops(epilogue.loop),
                                        bytes_kept=epilogue.bytes_kept)  # fmt: skip
        tile, reason = choose(facts)
        if tile is None:
            routed[position] = dataclasses.replace(step, reason=f"{step.reason}; {reason}")
            continue
        ours = dataclasses.replace(_ours(step, tile), reason=f"{step.reason} by our kernel: {reason}")
        if epilogue is not None:
            routed[position], position = None, epilogue.position
            kept = ours.outputs if epilogue.bytes_kept else ()
            ours = dataclasses.replace(
                ours, outputs=(buffers[epilogue.loop.buffer], *kept), epilogue=epilogue.loop,
                origins=tuple(dict.fromkeys((*ours.origins, *epilogue.loop.origins))),
            )  # fmt: skip
        routed[position] = ours
    return tuple(operation for operation in routed if operation is not None)


def _operands(step: ExternKernel) -> tuple[BufferView | None, BufferView, BufferView]:
    """What is added, and both factors."""
    return (None, *step.args) if len(step.args) == 2 else step.args


def _facts(step: ExternKernel) -> MatmulFacts | str:
    """What the chooser wants to know, or why our kernel does not compute this product."""
    _, a, b = _operands(step)
    sizes = [size.constant for view in (a, b) for size in (*view.sizes, *view.strides, view.offset)]
    if None in sizes:
        return "sizes vary"
    if a.dtype not in DTYPES or a.dtype != b.dtype or step.outputs[0] is None or step.outputs[0].dtype != a.dtype:
        return f"our kernel does not multiply {a.dtype}"
    if step.outputs[0].device.type not in ("cuda", "cpu"):
        return f"no kernel for {step.outputs[0].device.type}"
    m, k = (int(size) for size in a.sizes[-2:])
    batch, n = int(a.sizes[0]) if len(a.sizes) == 3 else 1, int(b.sizes[-1])
    if 0 in (batch, m, n, k) or not all(isinstance(value, (int, float)) for _, value in step.kwargs):
        return "it is empty, or scaled by what is no number"
    aligned, by_vectors = (all(_is_aligned(view, size) for view in (a, b)) for size in (16, 16 * a.dtype.itemsize))
    return MatmulFacts(batch, m, n, k, a.dtype, aligned, on_gpu=gpu.holds(step.outputs[0]), by_vectors=by_vectors)


def _is_aligned(view: BufferView, multiple: int) -> bool:
    """Whether elements lie side by side and rows, and matrices of a batch, start at multiples of so many bytes."""
    strides = [int(stride) * view.dtype.itemsize for stride in view.strides]
    rows = max(strides[-2:]), *(strides[:-2] if int(view.sizes[0]) > 1 else ())
    adjacent = min(strides[-2:]) == view.dtype.itemsize
    return adjacent and all(step % multiple == 0 for step in rows) and int(view.offset) * view.dtype.itemsize % 16 == 0


def _ours(step: ExternKernel, tile: str) -> ExternKernel:
    options = dict(step.kwargs) | {"tile": tile}
    return dataclasses.replace(
        step, target=OUR_KERNEL, args=_operands(step), kwargs=tuple(options.items()), out_argument=False
    )


def _epilogue(
    operations: Sequence[Operation | None], position: int, dependences: Dependences, buffers: Mapping[str, Buffer],
    outputs: frozenset[str],
) -> Epilogue | None:  # fmt: skip
    """The first reader of the product as its epilogue, if it can be one."""
    step = operations[position]
    assert isinstance(step, ExternKernel)
    made = step.outputs[0]
    readers = dependences.readers.get(step.writes[0], [])
    if made is None or not readers or made.name in dependences.overwriters:
        return None
    loop = operations[readers[0]]
    if not isinstance(loop, Loop):
        return None
    between = [op for op in operations[position + 1 : readers[0]] if op is not None]
    if any(name in step.reads for op in between for name in op.inherits.values()):
        return None
    moved = over_product(loop, made, buffers)
    if moved is None:
        return None
    keeps = len(readers) > 1 or made.name in outputs
    later = any(isinstance(operations[reader], Loop) for reader in dependences.readers.get(loop.buffer, ()))
    size = num_bytes(made)
    return Epilogue(moved, readers[0], size if keeps or later else 2 * size, size if keeps else 0)


def over_product(loop: Loop, made: Buffer, buffers: Mapping[str, Buffer]) -> Loop | None:
    """The loop over (batch, row, column) of the product `made`, which it loads as `PRODUCT`; `None` if that is not so."""
    if loop.fold is not None or loop.overwrites is not None or is_scatter(loop):
        return None
    if made.numel.constant is None or made.numel.constant > LARGEST_OFFSET:
        return None
    if buffers[loop.buffer].dtype not in DTYPES or buffers[loop.buffer].device != made.device:
        return None
    places = {load.index for load in loop.loads if load.buffer == made.name}
    if len(places) != 1 or product(axis.size for axis in loop.axes) is not made.numel or not _is_printable(loop):
        return None
    sizes = made.sizes if len(made.sizes) == 3 else (as_index(1), *made.sizes)
    strides = made.strides if len(made.strides) == 3 else (ZERO, *made.strides)
    axes = tuple(Axis(name, size) for name, size in zip(("batch", "row", "col"), sizes, strict=True))
    wide = tuple(axis for axis in axes if axis.size.constant != 1)
    there = sum((as_index(axis) * s for axis, s in zip(axes, strides, strict=True) if axis in wide), ZERO)
    (place,) = places
    changes = match_axes(loop.axes, place, wide, there)
    if changes is None:
        return None
    store = move(loop.store, changes)
    steps = [coefficient_of(store, axis) for axis in wide]
    if any(step is None or step.constant is None for step in steps):
        return None
    if store is not sum((as_index(axis) * step for axis, step in zip(wide, steps, strict=True) if step), ZERO):
        return None

    def of_the_tile(load: Load) -> Load:
        return Load(PRODUCT, flatten(axes), load.dtype) if load.buffer == made.name else load

    replacements: dict[Atom, Index] = dict(changes)
    value = rewrite(loop.value, replacements, of_the_tile)
    indices = [e.index for e in walk(value) if isinstance(e, (Load, IndexValue))]
    if any((highest := upper_bound(index).constant) is None or highest > LARGEST_OFFSET for index in indices):
        return None
    return dataclasses.replace(loop, axes=axes, value=value, store=store)


def _is_printable(loop: Loop) -> bool:
    """Whether the body holds only what an epilogue can print: no conditional loads, nothing indexed by data."""
    parts = list(walk(loop.value))
    if not all(isinstance(part, (Load, Constant, Apply, IndexValue, Random)) for part in parts):
        return False
    indices = [part.index for part in parts if isinstance(part, (Load, IndexValue))]
    return not any(indirect_values(index) for index in indices)
