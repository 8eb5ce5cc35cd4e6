"""Scalar expressions to lines of Triton: each value computed once, in the outermost scope that can, and named.

This module must not know about passes, reductions or stores; those call it.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch

from minicompile.codegen.device_sources import DEVICE_FUNCTIONS
from minicompile.codegen.geometry import Geometry, mask_name, position_name
from minicompile.codegen.index_text import index_text
from minicompile.codegen.naming import Namer, result_word
from minicompile.codegen.triton_ops import KEEPS_EXACTNESS, NEEDS_ROUNDED_OPERANDS, Operation, operation_text, rounded
from minicompile.codegen.triton_text import (
    FLOAT8,
    LOW_PRECISION,
    Text,
    call,
    compute_dtype,
    convert,
    infix,
    literal,
    stored_literal,
    triton_dtype,
    typed_literal,
)
from minicompile.ir.expr import Apply, Constant, Expr, IndexValue, Load, Masked, Random, children, indirect_values, walk
from minicompile.ir.index import Atom, Axis, FloorDiv, Index, Indirect, Mod, Symbol, atoms, is_below

LONGEST_INLINE = 60
"""A sub-expression used once is written inside its user if both together stay readable."""

Conditions = tuple[Expr, ...]
"""The conditions of the `Masked` expressions around a value, outermost first."""


@dataclasses.dataclass(frozen=True)
class Value:
    """A printed value: its source, the axes it varies along, and whether it is a block or a single number.

    `exact` says that a value of a 16-bit dtype is representable in it.
    """

    text: Text
    axes: frozenset[Axis] = frozenset()
    block: bool = False
    exact: bool = True
    is_literal: bool = False


@dataclasses.dataclass
class Scope:
    """A sequence of statements under construction: the kernel's own, or a loop's body."""

    axis: Axis | None = None
    lines: list[str] = dataclasses.field(default_factory=list)
    tail: list[str] = dataclasses.field(default_factory=list)
    values: dict[object, Value] = dataclasses.field(default_factory=dict)
    names: list[str] = dataclasses.field(default_factory=list)


class ExpressionWriter:
    """Prints expressions into scopes.

    Attributes:
        geometry: the kernel's iteration space.
        outer: the kernel's statements.
        inner: the current loop's body; the same as `outer` outside loops.
        known: leaves served from registers: results of reductions and scans.
        used, masked: axes whose position or mask is mentioned.
        symbols: size symbols mentioned.
        functions: device functions called.
    """

    def __init__(
        self, geometry: Geometry, parameters: Mapping[str, str], round_each: bool, extents: Mapping[str, Index] | None = None
    ) -> None:
        self.geometry = geometry
        self.outer = self.inner = Scope()
        self.known: dict[Load, Value] = {}
        self.known_axes: dict[Load, frozenset[Axis]] = {}
        self.names: dict[Expr, str] = {}
        self.used: set[Axis] = set()
        self.masked: set[Axis] = set()
        self.symbols: set[Symbol] = set()
        self.functions: set[str] = set()
        self.eviction: dict[Load, str] = {}
        self.namer = Namer(geometry.names().union(parameters.values()))
        self._parameters = parameters
        self._round_each = round_each
        self._extents = extents or {}
        self._uses: collections.Counter[Expr] = collections.Counter()
        self._computed_with: set[Expr] = set()
        self._index_uses: collections.Counter[Index | Atom] = collections.Counter()
        self._axes: dict[Expr, frozenset[Axis]] = {}
        self._reads: dict[Expr, bool] = {}
        self._conditions: collections.defaultdict[Load, set[Conditions]] = collections.defaultdict(set)

    def count(self, roots: Iterable[Expr], stores: Iterable[Index]) -> None:
        """Learn how often each expression and index is used, before printing anything."""
        seen: set[Expr] = set()
        wanted: set[tuple[Expr, Conditions]] = set()
        for root in roots:
            self._uses[root] += 1
            self._computed_with.add(root)
            for expression in walk(root):
                if expression in seen:
                    continue
                seen.add(expression)
                self._uses.update(children(expression))
                if not _compares_positions(expression):
                    self._computed_with.update(children(expression))
                if isinstance(expression, Load) and expression not in self.known_axes:
                    self._count_index(expression.index)
            self._note_conditions(root, wanted)
        for index in stores:
            self._count_index(index)

    def _note_conditions(self, root: Expr, seen: set[tuple[Expr, Conditions]]) -> None:
        """Learn under which conditions each load is wanted."""
        pending: list[tuple[Expr, Conditions]] = [(root, ())]
        while pending:
            current, inside = pending.pop()
            if isinstance(current, Load):
                self._conditions[current].add(inside)
            parts = [(child, inside) for child in children(current)]
            if isinstance(current, Masked):
                parts = [(current.condition, inside), (current.other, inside), (current.value, (*inside, current.condition))]
            new = [part for part in parts if part not in seen]
            seen.update(new)
            pending += new

    def _count_index(self, index: Index) -> None:
        self._index_uses[index] += 1
        if self._index_uses[index] == 1:
            self._index_uses.update(atom for atom in atoms(index) if isinstance(atom, (FloorDiv, Mod)))

    def axes_of(self, expression: Expr) -> frozenset[Axis]:
        """The axes along which a value varies."""
        if expression not in self._axes:
            for current in walk(expression):
                if current not in self._axes:
                    self._axes[current] = self._own_axes(current).union(*(self._axes[c] for c in children(current)))
        return self._axes[expression]

    def _own_axes(self, expression: Expr) -> frozenset[Axis]:
        match expression:
            case Load() if expression in self.known_axes:
                return self.known_axes[expression]
            case Load() | IndexValue() | Random():
                return index_axes(expression.index)
            case _:
                return frozenset()

    def _reads_memory(self, expression: Expr) -> bool:
        if expression not in self._reads:
            for current in walk(expression):
                if current not in self._reads:
                    own = isinstance(current, Load) and current not in self.known_axes and not self._is_free(current)
                    own |= isinstance(current, Apply) and current.operation == "checked"  # only where it is wanted
                    self._reads[current] = own or any(self._reads[c] for c in children(current))
        return self._reads[expression]

    def _is_free(self, load: Load) -> bool:
        """Whether a load needs no condition: it is one for many points, or wanted under several conditions, and lies in its
        buffer at all points."""
        shared = len(self._conditions[load]) > 1 or not index_axes(load.index) >= frozenset(self.geometry.live)
        known = load.buffer in self._extents and not indirect_values(load.index)
        return shared and known and is_below(load.index, self._extents[load.buffer])

    def scope_for(self, axes: Iterable[Axis]) -> Scope:
        """The outermost scope in which a value that varies along `axes` can be computed."""
        return self.inner if self.inner.axis in set(axes) else self.outer

    def value(self, expression: Expr, conditions: Conditions = ()) -> Value:
        """The printed value, after printing whatever it needs."""
        stack: list[tuple[Expr, Conditions, bool]] = [(expression, conditions, False)]
        while stack:
            current, inside, ready = stack.pop()
            key = self._key(current, inside)
            if self._find(key) is not None:
                continue
            if ready:
                axes = self.axes_of(current).union(*map(self.axes_of, key[1]))  # a masked load varies as its mask does
                self.scope_for(axes).values[key] = self._print(current, key[1])
                continue
            stack.append((current, inside, True))
            if isinstance(current, Masked):
                stack.extend((child, where, False) for child, where in reversed(self._masked_parts(current, inside)))
            elif current not in self.known:
                stack.extend((child, inside, False) for child in reversed(children(current)))
        found = self._find(self._key(expression, conditions))
        assert found is not None
        return found

    def _masked_parts(self, masked: Masked, conditions: Conditions) -> list[tuple[Expr, Conditions]]:
        """What must be printed before a masked value, and under which conditions."""
        inside = (*conditions, masked.condition)
        before: list[tuple[Expr, Conditions]] = [(masked.condition, conditions)]
        if self._is_masked_load(masked):
            return [*before, *((child, inside) for child in children(masked.value))]
        return [*before, (masked.other, conditions), (masked.value, inside)]  # which may share what `other` has loaded

    def _is_masked_load(self, masked: Masked) -> bool:
        """Whether the value can be loaded with its default in one instruction."""
        value = masked.value
        loaded = isinstance(value, Load) and value not in self.known and not self._is_free(value)
        return loaded and isinstance(masked.other, Constant)

    def _key(self, expression: Expr, conditions: Conditions) -> tuple[Expr, Conditions]:
        return (expression, conditions if conditions and self._reads_memory(expression) else ())

    def _find(self, key: tuple[Expr, Conditions]) -> Value | None:
        """What is printed of an expression under the conditions, or under the first of them alone."""
        expression, conditions = key
        keys = [(expression, conditions[:count]) for count in range(len(conditions), -1, -1)]
        return next((found for k in keys for scope in (self.outer, self.inner) if (found := scope.values.get(k))), None)

    def _hoisted(self, expression: Expr, conditions: Conditions, home: Scope) -> Value:
        """A printed value for a user in `home`; one that a loop does not change is computed before it."""
        value = self.value(expression, conditions)
        scope = self.scope_for(value.axes)
        if scope is home or value.is_literal:
            return value
        value = self.bind(self.names.get(expression) or _word(expression), value)
        scope.values[self._key(expression, conditions)] = value
        return value

    def _print(self, expression: Expr, conditions: Conditions) -> Value:
        match expression:
            case Load() if expression in self.known:
                return self.known[expression]
            case Load():
                return self._load(expression, conditions)
            case Constant():
                held = compute_dtype(expression.dtype)
                return Value(literal(expression.value, held), exact=False, is_literal=True)
            case IndexValue():
                return self._index_value(expression, conditions)
            case Masked():
                return self._masked(expression, conditions)
            case Random():
                return self._random(expression, conditions)
            case Apply():
                return self._apply(expression, conditions)
        raise TypeError(f"no text for {expression}")

    def _apply(self, expression: Apply, conditions: Conditions) -> Value:
        home = self.scope_for(self.axes_of(expression))
        arguments = [self._hoisted(argument, conditions, home) for argument in expression.arguments]
        sources = tuple(argument.dtype for argument in expression.arguments)
        texts = self._operands(expression, arguments)
        if expression.operation == "checked":
            mask = self.mask(frozenset().union(*(value.axes for value in arguments)), conditions)
            arguments, texts = [*arguments, *([mask] if mask else [])], [*texts, *([mask.text] if mask else [])]
            self._uses[expression] += 1  # a line of its own
        block = any(argument.block for argument in arguments)
        text = operation_text(Operation(expression.operation, tuple(texts), sources, expression.dtype, block))
        self.functions |= {name for name in DEVICE_FUNCTIONS if f"{name}(" in text.text}
        exact = expression.operation in ("cast", "bitcast")
        exact |= expression.operation in KEEPS_EXACTNESS and all(value.exact for value in arguments)
        if self._round_each and expression.dtype in LOW_PRECISION and not exact:
            text, exact = rounded(text, expression.dtype), True
        value = self._combined(text, arguments, exact)
        return self._bind_if_needed(expression, value)

    def _operands(self, expression: Apply, arguments: list[Value]) -> list[Text]:
        """Operands as the operation needs them: literals typed where Triton would guess, jumps on stored values."""
        weighed = {"where": arguments[1:], "checked": arguments[:1]}.get(expression.operation, arguments)
        all_literal = all(value.is_literal for value in weighed)
        promotes = expression.dtype == torch.int64 and expression.operation in ("where", "maximum", "minimum")
        to_discrete = expression.operation == "cast" and (not expression.dtype.is_floating_point or expression.dtype in FLOAT8)
        texts: list[Text] = []
        for position, (argument, value) in enumerate(zip(expression.arguments, arguments, strict=True)):
            text = value.text
            dtype = compute_dtype(argument.dtype)
            if isinstance(argument, Constant):
                loose = dtype in (torch.float32, torch.int32, torch.bool) or expression.operation in _ARITHMETIC
                loose &= dtype.is_floating_point or expression.operation != "pow"
                loose &= dtype != torch.float64 or expression.operation not in _COMPARISONS
                loose |= promotes or (dtype == torch.int64 and position == 1 and expression.operation in _BY_CONSTANT)
                if all_literal or not loose or (expression.operation == "where" and position == 0):
                    text = typed_literal(argument.value, dtype)
                if expression.operation in ("left_shift", "right_shift") and position == 1:
                    text = value.text
            elif (
                argument.dtype in LOW_PRECISION
                and not value.exact
                and (expression.operation in NEEDS_ROUNDED_OPERANDS or to_discrete)
            ):
                text = rounded(text, argument.dtype)
            texts.append(text)
        return texts

    def _combined(self, text: Text, parts: Sequence[Value], exact: bool = True) -> Value:
        return Value(text, frozenset().union(*(part.axes for part in parts)), any(part.block for part in parts), exact)

    def _bind_if_needed(self, expression: Expr, value: Value) -> Value:
        """Give the value a variable unless it is short and used once, by an expression of the same scope."""
        if expression not in self.names and self._uses[expression] <= 1 and len(value.text.text) <= LONGEST_INLINE:
            return value
        return self.bind(self.names.get(expression) or _word(expression), value)

    def bind(self, wish: str, value: Value) -> Value:
        """Assign the value to a variable in the outermost scope that can hold it."""
        if value.text.text.isidentifier():
            return value
        name = self.namer.fresh(wish)
        scope = self.scope_for(value.axes)
        scope.names.append(name)
        scope.lines.append(f"{name} = {value.text}")
        return dataclasses.replace(value, text=Text(name))

    def shortened(self, wish: str, value: Value, longest: int = LONGEST_INLINE) -> Value:
        """The value, in a variable if its text is long."""
        return self.bind(wish, value) if len(value.text.text) > longest else value

    def call_function(self, name: str) -> str:
        """Note that a device function is used; returns its name."""
        self.functions.add(name)
        return name

    def _load(self, load: Load, conditions: Conditions, other: Constant | None = None) -> Value:
        """A load from memory, into a variable named after the buffer."""
        pointer = self._parameters[load.buffer]
        offset = self.shortened("offsets", self.offset(load.index, conditions))
        mask = self.mask(offset.axes, conditions)
        mask = self.shortened("inside", mask) if mask is not None else None
        varying = mask.axes if mask else frozenset[Axis]()
        address, block = self.address(pointer, offset, varying, mask is not None and mask.block)
        text = call("tl.load", address, *self._load_options(load, mask, other))
        if compute_dtype(load.dtype) != load.dtype:
            text = convert(text, compute_dtype(load.dtype))
        name = self.names.get(load) or pointer.removesuffix("_ptr")
        return self.bind(name, Value(text, offset.axes | varying, block))

    def _load_options(self, load: Load, mask: Value | None, other: Constant | None) -> list[str]:
        options: list[str] = []
        if mask is not None:
            options.append(f"mask={mask.text}")
            reduction = self.geometry.reduction
            if other is not None:
                options.append(f"other={stored_literal(other.value, compute_dtype(other.dtype))}")
            elif reduction is not None and reduction in mask.axes and self.geometry.is_masked(reduction):
                options.append(f"other={literal(0, compute_dtype(load.dtype))}")
        if load in self.eviction:
            options.append(f'eviction_policy="{self.eviction[load]}"')
        return options

    def address(self, pointer: str, offset: Value, axes: frozenset[Axis], block: bool) -> tuple[str, bool]:
        """Pointer plus offset, in the shape of all that varies, along `axes` too; and whether that is a block."""
        text = pointer if offset.text.text == "0" else infix(Text(pointer), "+", offset.text).text
        live = axes & frozenset(self.geometry.live)
        if not (block or live) or offset.block and live <= offset.axes:
            return text, offset.block
        return f"tl.broadcast_to({text}, {self.geometry.shape(axes | offset.axes)})", True

    def mask(self, axes: Iterable[Axis], conditions: Conditions = ()) -> Value | None:
        """The mask of an access that varies along `axes`, under the given conditions; `None` if there is none."""
        masked = self.geometry.masks(axes)
        self.masked.update(masked)
        parts = [Value(Text(mask_name(axis)), frozenset({axis}), True) for axis in masked]
        for position, condition in enumerate(conditions):
            parts.append(self.value(condition, conditions[:position]))
        if not parts:
            return None
        text = parts[0].text
        for part in parts[1:]:
            text = infix(text, "&", part.text)
        return self._combined(text, parts)

    def offset(self, index: Index, conditions: Conditions = ()) -> Value:
        """The text of an index; one that several accesses share becomes a variable."""
        parts = [self.value(value, conditions) for value in indirect_values(index)]
        axes = index_axes(index).union(*(part.axes for part in parts))
        live = set(self.geometry.live)
        block = bool(axes & live) or any(part.block for part in parts)
        key = ("index", index)
        scope = self.scope_for(axes)
        if key in scope.values:
            return scope.values[key]
        value = Value(index_text(index, lambda atom: self._atom(atom, conditions)), axes, block)
        shared = self._index_uses[index] > 1 and not parts and (len(index.terms) > 1 or value.text.level < 40)
        if shared:
            value = self.bind("offsets" if block else "offset", value)
            scope.values[key] = value
        return value

    def _atom(self, atom: Atom, conditions: Conditions) -> Text | None:
        match atom:
            case Axis():
                self.used.add(atom)
                return Text(position_name(atom))
            case Symbol():
                self.symbols.add(atom)
                return Text(atom.name)
            case Indirect() if isinstance(atom.value, IndexValue) and not self.geometry.wide:
                return self.offset(atom.value.index, conditions).text
            case Indirect():
                value = self.value(atom.value, conditions)
                narrow = not value.is_literal and not self.geometry.wide and atom.size.constant is not None
                if atom.value.dtype == torch.int64 and narrow:
                    return convert(value.text, torch.int32)
                return value.text
            case FloorDiv() | Mod():
                return self._shared_division(atom, conditions)

    def _shared_division(self, atom: FloorDiv | Mod, conditions: Conditions) -> Text | None:
        """A variable for a division that several indices share; `None` if it is to be spelled out."""
        inner = Index((((atom,), 1),))
        if self._index_uses[atom] <= 1 or any(isinstance(a, Indirect) for a in atoms(inner)):
            return None
        axes = index_axes(inner)
        scope = self.scope_for(axes)
        if atom not in scope.values:
            text = index_text(inner, lambda a: None if a is atom else self._atom(a, conditions))
            word = "div" if isinstance(atom, FloorDiv) else "mod"
            numerator = "_".join(sorted(a.name for a in index_axes(atom.numerator))) or "size"
            value = Value(text, axes, bool(axes & set(self.geometry.live)))
            scope.values[atom] = self.bind(f"{numerator}_{word}_{atom.divisor}", value)
        return scope.values[atom].text

    def _index_value(self, expression: IndexValue, conditions: Conditions) -> Value:
        offset = self.offset(expression.index, conditions)
        if offset.axes and not self.geometry.wide and expression not in self._computed_with:
            text = offset.text
        elif offset.block:
            text = convert(offset.text, compute_dtype(expression.dtype))
        else:
            text = call("tl.cast", offset.text, triton_dtype(compute_dtype(expression.dtype)))
        return self._bind_if_needed(expression, Value(text, offset.axes, offset.block, exact=False))

    def _masked(self, expression: Masked, conditions: Conditions) -> Value:
        inside = (*conditions, expression.condition)
        home = self.scope_for(self.axes_of(expression))
        if self._is_masked_load(expression):
            assert isinstance(expression.value, Load) and isinstance(expression.other, Constant)
            return self._load(expression.value, inside, expression.other)
        other = self._hoisted(expression.other, conditions, home)
        condition = self._hoisted(expression.condition, conditions, home)
        value = self._hoisted(expression.value, inside, home)
        other_text = other.text
        if other.is_literal and compute_dtype(expression.dtype) not in (torch.float32, torch.int32, torch.bool):
            assert isinstance(expression.other, Constant)
            other_text = typed_literal(expression.other.value, compute_dtype(expression.dtype))
        selected = call("tl.where", condition.text, value.text, other_text)
        return self._bind_if_needed(expression, self._combined(selected, [condition, value, other], False))

    def _random(self, expression: Random, conditions: Conditions) -> Value:
        seed = self.value(expression.seed, conditions)
        counter = self.offset(expression.index, conditions)
        suffix = f"_{expression.dtype}".replace("torch.", "")
        name = f"random_{expression.kind}"
        function = self.call_function(name + suffix if name + suffix in DEVICE_FUNCTIONS else name)
        position = counter.text if counter.block else call("tl.cast", counter.text, "tl.int64")
        text = call(function, seed.text, position)
        exact = expression.kind == "uniform"
        if self._round_each and not exact and expression.dtype in LOW_PRECISION:
            text, exact = rounded(text, expression.dtype), True
        return self.bind(self.names.get(expression, expression.kind), self._combined(text, [seed, counter], exact))


_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_ARITHMETIC = _COMPARISONS | {"add", "sub", "mul", "bitwise_and", "bitwise_or", "bitwise_xor", "truediv",
                              "approximate_truediv", "truncdiv"}  # fmt: skip
"""Operations printed as operators, in which Triton gives a bare literal the dtype of the other operand; comparisons of
doubles are not among them: Triton 3.6 rounds the literal to fp32."""

_BY_CONSTANT = frozenset({"floordiv", "remainder", "fmod"})
"""Operations on integers that take a bare literal as their second operand."""


def _compares_positions(expression: Expr) -> bool:
    """Whether only the order of positions matters, so that they need not be widened to the dtype they have in eager."""
    return (
        isinstance(expression, Apply)
        and expression.operation in _COMPARISONS
        and all(isinstance(argument, (IndexValue, Constant)) for argument in expression.arguments)
    )


def _word(expression: Expr) -> str:
    match expression:
        case Apply():
            return result_word(expression.operation)
        case Masked():
            return "selected"
        case IndexValue():
            return "position"
        case _:
            return "value"


def index_axes(index: Index) -> frozenset[Axis]:
    """The axes that occur in an index, divisions included."""
    return frozenset(atom for atom in atoms(index) if isinstance(atom, Axis))
