"""What a kernel group computes, as expressions over memory and over results of folds only.

Values that one loop hands to the next inside the group are substituted, so that sharing is found by identity; the
results of reductions and scans stay loads of their buffers (*leaves*). This module must not print anything.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from minicompile.codegen.index_text import bounds, extent, symbols_of
from minicompile.codegen.triton_text import LOW_PRECISION, compute_dtype
from minicompile.errors import Unsupported
from minicompile.ir.expr import (
    Apply,
    Constant,
    Expr,
    IndexValue,
    Load,
    Masked,
    Random,
    cast,
    exponential_below,
    indirect_values,
    rewrite,
    rewrite_index,
    walk,
    without_widening,
)
from minicompile.ir.index import Axis, Index, as_index, hint, is_nonnegative, lower_bound, upper_bound
from minicompile.ir.loops import Buffer, Loop, Reduction, Scan
from minicompile.ir.schedule import KernelGroup

LARGEST_INT32 = 2**31 - 1
ALWAYS = Constant(True, torch.bool)


class GroupValues:
    """The values of a group's loops.

    Attributes:
        group: the group.
        loops: its loops by buffer.
        values: by buffer, the value stored, or for a fold the value folded.
    """

    def __init__(self, group: KernelGroup, buffers: Mapping[str, Buffer]) -> None:
        self.group = group
        self.loops = {loop.buffer: loop for loop in group.loops}
        self.values: dict[str, Expr] = {}
        self._buffers = buffers
        for loop in group.loops:
            value = self.resolve(loop.value)
            self.values[loop.buffer] = value if loop.fold else cast(value, buffers[loop.buffer].dtype)

    def resolve(self, expression: Expr) -> Expr:
        """The expression with loads of what the group computes replaced by that, and whole numbers folded."""
        return rewrite(expression, on_load=self._resolved, on_each=folded_integers)

    def resolve_index(self, index: Index) -> Index:
        """The same for the loads inside an index."""
        return rewrite_index(index, on_load=self._resolved, on_each=folded_integers)

    def _resolved(self, load: Load) -> Expr:
        if load.buffer not in self.values:
            return load
        producer = self.loops[load.buffer]
        if producer.store != load.index or producer.accumulate or producer.condition is not None:
            raise Unsupported("generated code", f"{load} is not what the same kernel computes there ({producer.store})")
        return self.result(producer)

    def result(self, loop: Loop) -> Expr:
        """What a loop stores: its value, or the leaf of its fold."""
        return self.leaf(self.first_fold(loop)) if loop.fold else self.values[loop.buffer]

    def leaf(self, loop: Loop) -> Load:
        """The result of a fold as an expression."""
        return Load(loop.buffer, loop.store, self._buffers[loop.buffer].dtype)

    def first_fold(self, loop: Loop) -> Loop:
        """The first loop of the group that computes the same reduction or scan."""
        known = (other for other in self.group.loops if other.buffer in self.values)
        return next((other for other in known if self._fold_key(other) == self._fold_key(loop)), loop)

    def _fold_key(self, loop: Loop) -> tuple[object, ...]:
        return (self.values[loop.buffer], loop.fold, loop.store, self._buffers[loop.buffer].dtype)

    def folds(self, kind: type) -> list[Loop]:
        """The distinct loops with a `Reduction` or a `Scan`."""
        return [loop for loop in self.group.loops if isinstance(loop.fold, kind) and self.first_fold(loop) is loop]

    def memory_loads(self, expression: Expr) -> list[Load]:
        """The loads that go to memory."""
        return [e for e in walk(expression) if isinstance(e, Load) and e.buffer not in self.values]

    def roots(self) -> list[Expr]:
        """Every expression that will be printed, in order."""
        roots: list[Expr] = []
        for loop in self.group.loops:
            if loop.fold or loop.buffer in self.group.stored:
                roots.append(self.values[loop.buffer])
                roots.extend(self.store_parts(loop))
        return roots

    def store_parts(self, loop: Loop) -> list[Expr]:
        """What a store needs besides the value: its condition, and the values in its place."""
        condition = [] if loop.condition is None else [self.resolve(loop.condition)]
        return [*condition, *map(self.resolve, indirect_values(loop.store))]

    def pointers(self) -> list[str]:
        """Buffers in memory that the kernel takes: those read, in order, then those written."""
        order: dict[str, None] = {}
        for root in self.roots():
            order.update(dict.fromkeys(load.buffer for load in self.memory_loads(root)))
        return list(order | dict.fromkeys(self.group.writes))

    def needs_wide_indices(self) -> bool:
        """Whether some position or offset does not fit 32 bits, with symbolic sizes at their hints."""
        if any(hint(tile.axis.size) + tile.block > LARGEST_INT32 for tile in self.group.tile.axes):
            return True
        return any(extent(index) > LARGEST_INT32 for index in self._indices())

    def size_limits(self) -> set[tuple[Index, int]]:
        """What symbolic sizes must be for 32 bits to suffice: expressions, and the largest value of each."""
        plan = self.group.tile
        found = [tile.axis.size + tile.block for tile in plan.axes]
        for index in self._indices():
            found += bounds(index)
            found += [as_index(symbol) for symbol in symbols_of(index)]
        return {(bound, LARGEST_INT32) for bound in found if bound.constant is None}

    def row_limit(self) -> set[tuple[Index, int]]:
        """The longest symbolic row that a persistent kernel is made for."""
        plan = self.group.tile
        return {(plan.reduction.axis.size, plan.longest)} if plan.longest and plan.reduction else set()

    def _indices(self) -> list[Index]:
        """Every place and position that the kernel computes."""
        printed = {expression for root in self.roots() for expression in walk(root)}
        read = [expression.index for expression in printed if isinstance(expression, (Load, IndexValue, Random))]
        return [*(loop.store for loop in self.group.loops), *read]

    def levels(self, axis: Axis, online: Mapping[str, str]) -> dict[str, int]:
        """By buffer, the first pass over `axis` in which a loop's value can be computed."""
        levels: dict[str, int] = {}
        for loop in self.group.loops:
            level = 0
            for expression in walk(self.values[loop.buffer]):
                if isinstance(expression, Load) and expression.buffer in levels:
                    after = axis in self.loops[expression.buffer].reduction_axes
                    level = max(level, levels[expression.buffer] + after)
            levels[loop.buffer] = levels[online[loop.buffer]] if loop.buffer in online else level
        return levels

    def scans_in(self, roots: list[Expr]) -> list[Loop]:
        """The scans on which any of `roots` depends, in order."""
        needed: set[str] = set()
        for loop in reversed(self.folds(Scan)):
            dependents = [*roots, *(self.values[name] for name in needed)]
            if any(self.leaf(loop) in walk(root) for root in dependents):
                needed.add(loop.buffer)
        return [loop for loop in self.folds(Scan) if loop.buffer in needed]

    def online_softmax(self) -> dict[str, str]:
        """Sums of `exp(value - maximum)`, each to the maximum of the same values: one walk does both."""
        found: dict[str, str] = {}
        for total in self.folds(Reduction):
            parts = exponential_below(self.values[total.buffer])
            highest = self.loops.get(parts[1].buffer) if parts is not None and isinstance(parts[1], Load) else None
            if parts is None or highest is None or parts[1] is not self.leaf(highest):
                continue
            folds = total.fold, highest.fold
            same = without_widening(parts[0]) is without_widening(self.values[highest.buffer])
            if same and folds == (Reduction("sum", total.reduction_axes), Reduction("max", total.reduction_axes)):
                if compute_dtype(highest.value.dtype) == torch.float32:
                    found[total.buffer] = highest.buffer
        return found


_INTEGER_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "minimum": min, "maximum": max,
}  # fmt: skip


def folded_integers(value: Expr) -> Expr:
    """A constant position, arithmetic of constant whole numbers, or what is known of positions, as a constant."""
    if isinstance(value, IndexValue) and value.index.constant is not None:
        return Constant(torch.tensor(int(value.index)).to(value.dtype).item(), value.dtype)
    if isinstance(value, Masked) and isinstance(value.condition, Constant):
        return value.value if value.condition.value else value.other
    if not isinstance(value, Apply):
        return value
    function = _INTEGER_ARITHMETIC.get(value.operation)
    if function is None or value.dtype not in (torch.int32, torch.int64):
        return _without_known_truths(value)
    numbers = [int(number.value) for number in value.arguments if isinstance(number, Constant)]
    bounds = torch.iinfo(value.dtype)
    if len(numbers) < len(value.arguments):
        return _without_known_truths(value)
    if not bounds.min <= (result := function(*numbers)) <= bounds.max:
        return value
    return Constant(result, value.dtype)


def _without_known_truths(value: Apply) -> Expr:
    """A comparison of positions that holds always, or never, as a constant; what such constants decide without them."""
    first, second = value.arguments[0], value.arguments[-1]
    if value.operation in ("lt", "ge"):
        below = _is_below(first, second)
        return value if below is None else Constant(below == (value.operation == "lt"), torch.bool)
    if value.operation in ("minimum", "maximum"):
        least, most = (first, second) if _is_below(second, first) is False else (second, first)
        known = _is_below(most, least) is False
        return (least if value.operation == "minimum" else most) if known else value
    if value.operation == "where" and isinstance(first, Constant):
        return value.arguments[1 if first.value else 2]
    if value.operation in ("logical_and", "checked") and second is ALWAYS and first.dtype == value.dtype:
        return first
    if value.operation == "logical_and" and first is ALWAYS and second.dtype == torch.bool:
        return second
    return value


def _is_below(left: Expr, right: Expr) -> bool | None:
    """Whether `left < right` between whole numbers, if that is known."""
    (least, most), (low, high) = _range(left), _range(right)
    if None not in (most, low) and is_nonnegative(low - most - 1):
        return True
    return False if None not in (least, high) and is_nonnegative(least - high) else None


@functools.lru_cache(maxsize=1 << 12)
def _range(value: Expr) -> tuple[Any, Any]:
    """The smallest and the largest value of a whole number made of positions, as far as they are known."""
    match value:
        case Constant() if type(value.value) is int:
            return as_index(value.value), as_index(value.value)
        case IndexValue() if value.dtype in _WHOLE and not indirect_values(value.index):
            return lower_bound(value.index), upper_bound(value.index)
        case Apply() if value.dtype in _WHOLE and value.operation in _RANGES:
            ends = [end for argument in value.arguments for end in _range(argument)]
            numbers = [None if end is None else end.constant for end in ends]
            if None not in numbers:
                least, most = _RANGES[value.operation](*numbers)
                return as_index(least), as_index(most)
    return None, None


_WHOLE = (torch.int32, torch.int64)
_RANGES: dict[str, Callable[..., tuple[int, int]]] = {
    "add": lambda a, b, c, d: (a + c, b + d), "sub": lambda a, b, c, d: (a - d, b - c), "neg": lambda a, b: (-b, -a),
    "minimum": lambda a, b, c, d: (min(a, c), min(b, d)), "maximum": lambda a, b, c, d: (max(a, c), max(b, d)),
    "abs": lambda a, b: (max(a, -b, 0), max(b, -a)), "cast": lambda a, b: (a, b),
}  # fmt: skip


def without_final_rounding(value: Expr, dtype: torch.dtype, round_each: bool) -> Expr:
    """A store into 16 bits rounds by itself: a cast just before it need not be printed, a division there not be exact.

    With `round_each` even the sixteen thousandth quotient that lies next to a tie comes out as eager's.
    """
    if dtype not in LOW_PRECISION or not isinstance(value, Apply):
        return value
    if value.operation == "cast" and value.dtype == dtype and compute_dtype(value.arguments[0].dtype) == torch.float32:
        value = value.arguments[0]
    if isinstance(value, Apply) and value.operation == "truediv" and value.dtype == torch.float32 and not round_each:
        return Apply("approximate_truediv", value.arguments, value.dtype)
    return value
