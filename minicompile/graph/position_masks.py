"""What a tensor made of positions and constants holds, for every length at once.

`arange`, `ones`, `tril`, comparisons and arithmetic on them are followed as formulas of row and column: a causal mask is
seen as one whatever its size, also where that varies between calls, and no large mask is ever computed. What is not
understood is `Unknown`. This module must not know what the masks are for.
"""

import dataclasses
import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from minicompile.ir.fake_mode import surely, surely_equal, surely_one

VIEWS = ("view", "reshape", "unsqueeze", "squeeze", "expand", "getitem", "contiguous", "broadcast_to", "repeat",
         "detach")  # fmt: skip
COMPARISONS = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
OPPOSITES = {"lt": operator.ge, "le": operator.gt, "gt": operator.le, "ge": operator.lt}
ELEMENTWISE = (
    "logical_not", "invert", "bitwise_not", "logical_and", "bitwise_and", "and_", "and", "logical_or", "bitwise_or", "or_",
    "or", "eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "rsub", "mul", "div", "truediv", "neg", "sqrt", "rsqrt",
    "where", "masked_fill", "tensor", "clone",
)  # fmt: skip
CASTS = ("to", "bool", "float", "double", "half", "bfloat16", "int", "long", "type", "type_as")
FILLS = {"ones": 1, "zeros": 0, "ones_like": 1, "zeros_like": 0, "new_ones": 1, "new_zeros": 0, "full": None,
         "full_like": None, "new_full": None}
"""Functions that read nothing but sizes, and what they fill with."""


class Unknown(Exception):
    """The tensor is none that is followed."""


@dataclasses.dataclass(frozen=True)
class Positions:
    """Integers: `rows` times the row, plus `columns` times the column, plus `offset`."""

    rows: int
    columns: int
    offset: Any


@dataclasses.dataclass(frozen=True)
class Band:
    """`inside` where column - row is at most `edge`, elsewhere `outside`; both alike, and no edge, for a constant."""

    edge: Any
    inside: Tensor
    outside: Tensor


class PositionReader:
    """Reads tensors of one captured graph; `name_of` and `changes_something` say what its nodes do."""

    def __init__(self, module: GraphModule, name_of: Any, changes_something: Any) -> None:
        self._module, self._name_of, self._changes = module, name_of, changes_something
        self._known: dict[Node, Positions | Band | None] = {}
        if "writes" not in module.meta:  # one module has many readers
            module.meta["writes"] = any(map(changes_something, module.graph.nodes))

    def band(self, node: Any) -> Band | None:
        """The band that a node is, or `None`."""
        try:
            found = self._value(node)
        except Unknown:
            return None
        return found if isinstance(found, Band) else None

    def _value(self, node: Any) -> Positions | Band:
        """What a node's tensor holds."""
        if not isinstance(node, Node) or not isinstance(node.meta.get("example_value"), Tensor):
            raise Unknown
        if node not in self._known:
            self._known[node] = None
            if not self._module.meta["writes"] or not self._changes(node) and not self._is_written(node):
                value = self._compute(node, self._name_of(node))
                self._known[node] = within(value, node.meta["example_value"].shape) if isinstance(value, Band) else value
        found = self._known[node]
        if found is None:
            raise Unknown
        return found

    def _is_written(self, node: Node) -> bool:
        """Whether the graph writes to the tensor or to what may be a view of it."""
        shared, stack = {node}, [node]
        while stack:
            for user in stack.pop().users:
                written = user.kwargs.get("out", user.args[0] if user.args else None)
                if isinstance(written, Node) and written in shared and self._changes(user):
                    return True
                if user not in shared and self._name_of(user) not in (*ELEMENTWISE, *FILLS):
                    shared.add(user)
                    stack.append(user)
        return False

    def _compute(self, node: Node, name: str) -> Positions | Band:
        example = node.meta["example_value"]
        if node.op == "get_attr":
            held = getattr(self._module, str(node.target), None)
            if type(held) is not Tensor or held.dim() != 0:
                raise Unknown
            return Band(None, held.cpu(), held.cpu())
        if name in FILLS:
            fill = FILLS[name]
            return constant(node.kwargs.get("fill_value", *node.args[-1:]) if fill is None else fill, example)
        if name == "arange":
            return arange(node, example)
        if name in VIEWS:
            return self._view(node, name, example)
        if name in ("transpose", "t", "mT", "getattr"):
            return self._transposed(node, name)
        if name in ("tril", "triu"):
            return self._triangle(node, name, example)
        if name == "diff":
            return self._differences(node, example)
        if name == "cumsum":
            return self._sums(node, example)
        if name in CASTS and isinstance(self._value(node.args[0]), Band):
            return mapped(lambda value: value.to(example.dtype), [self._value(node.args[0])], example)
        if name in ELEMENTWISE and not set(node.kwargs) - {"dtype", "device"}:
            return self._elementwise(node, name, example)
        raise Unknown

    def _elementwise(self, node: Node, name: str, example: Tensor) -> Positions | Band:
        values = [self._value(each) if isinstance(each, Node) and isinstance(each.meta.get("example_value"), Tensor) else each
                  for each in node.args]
        if any(isinstance(value, Positions) for value in values):
            return of_positions(name, [number(value) for value in values], example.shape)
        if any(isinstance(value, (Node, tuple, list)) for value in values):
            raise Unknown
        bands = [value for value in values if isinstance(value, Band)]

        def compute(*replacements: Tensor) -> Tensor:
            remaining = iter(replacements)
            args = [next(remaining) if isinstance(value, Band) else value for value in values]
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:])
            result: Tensor = node.target(*args)  # type: ignore[operator]
            return result

        return mapped(compute, bands, example)

    def _view(self, node: Node, name: str, example: Tensor) -> Positions | Band:
        source = self._value(node.args[0])
        before, after = node.args[0].meta["example_value"].shape, example.shape  # type: ignore[union-attr]
        if isinstance(source, Band) and source.edge is None:
            return source
        index = node.args[1] if name == "getitem" and isinstance(node.args[1], tuple) else node.args[1:2]
        if name == "getitem" and any(part not in (None, Ellipsis, slice(None)) for part in index):
            return sliced(source, index, after)
        old = [(dim - len(before), size) for dim, size in enumerate(before) if not surely_one(size)]
        new = [(dim - len(after), size) for dim, size in enumerate(after) if not surely_one(size)]
        if name in ("expand", "broadcast_to", "repeat"):
            new = [entry for entry in new if entry[0] in dict(old)]
        if len(old) != len(new) or not all(surely_equal(a, b) for (_, a), (_, b) in zip(old, new, strict=True)):
            raise Unknown
        moved = {was: now for (was, _), (now, _) in zip(old, new, strict=True)}
        if isinstance(source, Band):
            if moved.get(-2) != -2 or moved.get(-1) != -1:
                raise Unknown
            return source
        factors = {moved[dim]: factor for dim, factor in ((-2, source.rows), (-1, source.columns)) if dim in moved and factor}
        if not set(factors) <= {-1, -2}:
            raise Unknown
        return Positions(factors.get(-2, 0), factors.get(-1, 0), source.offset)

    def _transposed(self, node: Node, name: str) -> Positions | Band:
        source = self._value(node.args[0])
        rank = node.args[0].meta["example_value"].dim()  # type: ignore[union-attr]
        turned = {dim % rank for dim in node.args[1:]} == {rank - 2, rank - 1} if name == "transpose" else rank == 2
        if rank < 2 or not turned or name == "getattr" and node.args[1] not in ("T", "mT"):
            raise Unknown
        if isinstance(source, Positions):
            return Positions(source.columns, source.rows, source.offset)
        return source if source.edge is None else Band(-source.edge - 1, source.outside, source.inside)

    def _triangle(self, node: Node, name: str, example: Tensor) -> Band:
        source = self._value(node.args[0])
        edge = number(node.args[1] if len(node.args) > 1 else node.kwargs.get("diagonal", 0))
        if name == "triu":
            edge = edge - 1
        if isinstance(source, Positions) or any(surely_one(size) for size in example.shape[-2:]):
            raise Unknown
        if source.edge is not None and not surely_equal(source.edge, edge):
            raise Unknown
        nothing = torch.zeros_like(source.inside)
        return Band(edge, source.inside, nothing) if name == "tril" else Band(edge, nothing, source.outside)

    def _differences(self, node: Node, example: Tensor) -> Band:
        """Between neighbours along the columns, the first one also to what is put before it."""
        source, before = self._value(node.args[0]), node.kwargs.get("prepend")
        dim = node.kwargs.get("dim", -1)
        if len(node.args) > 1 or set(node.kwargs) - {"dim", "prepend"} or dim not in (-1, example.dim() - 1):
            raise Unknown
        if not isinstance(source, Positions):
            raise Unknown
        if before is not None:
            first = self._value(before)
            if not isinstance(before, Node) or not isinstance(first, Positions):
                raise Unknown
            if not surely_one(before.meta["example_value"].shape[-1]):
                raise Unknown
            if first.rows != source.rows or not surely_equal(source.offset - first.offset, source.columns):
                raise Unknown
        return constant(source.columns, example)

    def _sums(self, node: Node, example: Tensor) -> Band:
        """Running sums of zeros."""
        source = self._value(node.args[0])
        if not isinstance(source, Band) or source.edge is not None or source.inside.item() != 0:
            raise Unknown
        return constant(0, example)


def sliced(source: Positions | Band, index: tuple[Any, ...], after: torch.Size) -> Positions:
    """Neighbours cut out of positions, from a known place on in every dimension."""
    if not isinstance(source, Positions) or len(index) != len(after):
        raise Unknown
    if not all(isinstance(part, slice) and part.step in (None, 1) for part in index):
        raise Unknown
    factors = [0] * (len(index) - 2) + [source.rows, source.columns][-len(index) :]
    starts = [part.start or 0 for part in index]
    if any(type(start) is not int or start < 0 for start in starts):
        raise Unknown
    moved = sum(factor * start for factor, start in zip(factors, starts, strict=True))
    rows, columns = [0, *(0 if surely_one(size) else factor for factor, size in zip(factors, after, strict=True))][-2:]
    return Positions(rows, columns, source.offset + moved)


def constant(fill: Any, example: Tensor) -> Band:
    """One number everywhere."""
    if isinstance(fill, Node) or not isinstance(fill, (int, float)):
        raise Unknown
    value = torch.full(() if example.dim() == 0 else (1,), fill, dtype=example.dtype)
    return Band(None, value, value)


def arange(node: Node, example: Tensor) -> Positions:
    """The positions that `arange` counts."""
    if len(node.args) not in (1, 2) or example.dtype not in (torch.int64, torch.int32) or set(node.kwargs) - {"dtype", "device"}:
        raise Unknown
    return Positions(0, 0 if surely_one(example.shape[0]) else 1, 0 if len(node.args) == 1 else number(node.args[0]))


def of_positions(name: str, values: list[Any], sizes: torch.Size) -> Positions | Band:
    """Sums, differences and comparisons of positions and whole numbers."""
    if len(values) != 2 or any(isinstance(value, Band) for value in values):
        raise Unknown
    first, second = (value if isinstance(value, Positions) else Positions(0, 0, value) for value in values)
    sign = 1 if name == "add" else -1
    joined = Positions(first.rows + sign * second.rows, first.columns + sign * second.columns,
                       first.offset + sign * second.offset)  # fmt: skip
    if name in ("add", "sub"):
        return joined
    if name not in COMPARISONS:
        raise Unknown
    yes, no = torch.tensor([True]), torch.tensor([False])
    outcome = outcome_everywhere(name, joined, sizes)
    if outcome is not None:
        return Band(None, yes, yes) if outcome else Band(None, no, no)
    if (joined.rows, joined.columns) not in ((1, -1), (-1, 1)):
        raise Unknown
    strict = 1 if name in ("lt", "gt") else 0
    if (name in ("lt", "le")) == (joined.columns == 1):  # column - row is bounded from above
        return Band(-joined.offset * joined.columns - strict, yes, no)
    return Band(-joined.offset * joined.columns - 1 + strict, no, yes)


def outcome_everywhere(comparison: str, positions: Positions, sizes: torch.Size) -> bool | None:
    """What the comparison with zero gives if it is the same at every position of a tensor of these sizes."""
    least = greatest = positions.offset
    for factor, size in zip((positions.rows, positions.columns), (1, 1, *sizes)[-2:], strict=True):
        reach = factor * (size - 1)
        least, greatest = (least + reach, greatest) if factor < 0 else (least, greatest + reach)
    hardest, easiest = (least, greatest) if comparison in ("ge", "gt") else (greatest, least)
    if surely(COMPARISONS[comparison](hardest, 0)):
        return True
    return False if surely(OPPOSITES[comparison](easiest, 0)) else None


def within(band: Band, sizes: torch.Size) -> Band:
    """The band over so many rows and columns: a constant where its edge leaves them all on one side."""
    if band.edge is None:
        return band
    rows, columns = sizes[-2:]
    if surely(band.edge >= columns - 1):
        return Band(None, band.inside, band.inside)
    return Band(None, band.outside, band.outside) if surely(band.edge <= -rows) else band


def mapped(compute: Any, bands: list[Any], example: Tensor) -> Band:
    """An operation on every element, done once inside and once outside of the band."""
    edges = [band.edge for band in bands if band.edge is not None]
    if any(not surely_equal(edge, edges[0]) for edge in edges):
        raise Unknown
    try:
        inside, outside = compute(*(band.inside for band in bands)), compute(*(band.outside for band in bands))
    except Exception as failure:  # what cannot be computed here is simply not known
        raise Unknown from failure
    if not isinstance(inside, Tensor) or inside.numel() != 1:
        raise Unknown
    return Band(edges[0] if edges else None, inside.to(example.dtype), outside.to(example.dtype))


def number(value: Any) -> Any:
    """A whole number of the graph: a plain one, or that of a symbolic size; positions and bands stay."""
    if isinstance(value, Node):
        value = value.meta.get("example_value")
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt, Positions, Band)):
        raise Unknown
    return value
