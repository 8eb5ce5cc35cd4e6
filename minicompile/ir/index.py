"""Integer index expressions: polynomials over loop axes, symbolic sizes, and the divisions that reshapes need.

An `Index` is kept in one normal form, a sum of integer multiples of products of atoms, so that equal expressions are
equal objects and the static path never needs a computer algebra system. Atoms are axes, size symbols, floor divisions,
remainders and values loaded from memory (`Indirect`). Simplification uses the ranges of the axes:
`(4 * i + j) // 4` is `i` where `j < 4`, and `4 * (x // 4) + x % 4` is `x`.

This module must not know about tensors, buffers or code generation.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from minicompile.ir.interned import Interned

Monomial = tuple["Atom", ...]


class Axis(Interned):
    """A loop variable that runs over `0 <= axis < size`.

    Fields: `name` (a Python identifier) and `size` (an `Index`, constant where the size is static).
    """

    name: str
    size: Index

    def __new__(cls, name: str, size: int | Index) -> Axis:
        return super().__new__(cls, name, as_index(size))

    def __str__(self) -> str:
        return self.name


class Symbol(Interned):
    """A size that is known only at run time and is at least `minimum`; `hint` is the value seen at compile time."""

    name: str
    hint: int
    minimum: int

    def __str__(self) -> str:
        return self.name


class FloorDiv(Interned):
    """`numerator // divisor`, both `Index`, divisor positive."""

    numerator: Index
    divisor: Index

    def __str__(self) -> str:
        return f"({self.numerator}) // {_parenthesised(self.divisor)}"


class Mod(Interned):
    """`numerator % divisor`, both `Index`, divisor positive, result in `[0, divisor)`."""

    numerator: Index
    divisor: Index

    def __str__(self) -> str:
        return f"({self.numerator}) % {_parenthesised(self.divisor)}"


class Indirect(Interned):
    """An integer read from memory, used as an index. `value` is a scalar expression of integer dtype; the program
    guarantees `0 <= value < size` (lowering wraps negative values and checks where eager would)."""

    value: Any
    size: Index

    def __str__(self) -> str:
        return f"[{self.value}]"


Atom = Axis | Symbol | FloorDiv | Mod | Indirect


class Index(Interned):
    """A polynomial with integer coefficients: `terms` maps products of atoms to coefficients, in a fixed order."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: int | Index) -> Index:
        other = as_index(other)
        if not other.terms:
            return self
        if not self.terms:
            return other
        total = dict(self.terms)
        for monomial, coefficient in other.terms:
            total[monomial] = total.get(monomial, 0) + coefficient
        return _recombine(_from_terms(total))

    __radd__ = __add__

    def __sub__(self, other: int | Index) -> Index:
        return self + as_index(other) * -1

    def __rsub__(self, other: int | Index) -> Index:
        return as_index(other) - self

    def __mul__(self, other: int | Index) -> Index:
        if isinstance(other, int):
            if other == 1:
                return self
            return Index(tuple((m, c * other) for m, c in self.terms)) if other else ZERO
        product: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in other.terms:
                monomial = tuple(sorted(left + right, key=_atom_key)) if left and right else left or right
                product[monomial] = product.get(monomial, 0) + a * b
        return _recombine(_from_terms(product))

    __rmul__ = __mul__

    def __floordiv__(self, other: int | Index) -> Index:
        return floor_divide(self, as_index(other))

    def __mod__(self, other: int | Index) -> Index:
        return remainder(self, as_index(other))

    @property
    def constant(self) -> int | None:
        """The value if no atom occurs, else `None`."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    def __int__(self) -> int:
        value = self.constant
        if value is None:
            raise TypeError(f"{self} is not a constant")
        return value

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        return " + ".join(_term_text(m, c) for m, c in self.terms).replace("+ -", "- ")


def _term_text(monomial: Monomial, coefficient: int) -> str:
    factors = [f"({a})" if isinstance(a, (FloorDiv, Mod)) else str(a) for a in monomial]
    if coefficient != 1 or not factors:
        factors.insert(0, str(coefficient))
    return " * ".join(factors)


def _parenthesised(index: Index) -> str:
    return str(index) if len(index.terms) <= 1 else f"({index})"


@functools.lru_cache(maxsize=1 << 16)
def _atom_key(atom: Atom) -> tuple[int, str]:
    # A loaded value may be a large expression whose text repeats what it shares.
    return (_ATOM_ORDER[type(atom)], atom.digest if isinstance(atom, Indirect) else _atom_text(atom))


def _atom_text(atom: Atom) -> str:
    """Like `str`, with values from memory shortened."""
    if isinstance(atom, (FloorDiv, Mod)):
        sign = "//" if isinstance(atom, FloorDiv) else "%"
        return f"({_index_text(atom.numerator)}) {sign} ({_index_text(atom.divisor)})"
    return atom.digest if isinstance(atom, Indirect) else atom.name


def _index_text(index: Index) -> str:
    return " + ".join(f"{c} * {' * '.join(map(_atom_text, m))}" for m, c in index.terms)


_ATOM_ORDER: dict[type, int] = {Symbol: 0, Axis: 1, FloorDiv: 2, Mod: 3, Indirect: 4}


def _from_terms(terms: Mapping[Monomial, int]) -> Index:
    present = [(m, c) for m, c in terms.items() if c]
    if len(present) > 1:
        present.sort(key=lambda term: (-len(term[0]), [_atom_key(a) for a in term[0]]))
    return Index(tuple(present))


def as_index(value: int | Index | Axis | Symbol | FloorDiv | Mod | Indirect) -> Index:
    """An `Index` for an integer or a single atom."""
    if isinstance(value, Index):
        return value
    if isinstance(value, int):
        return Index((((), int(value)),)) if value else ZERO
    return Index((((value,), 1),))


def total(values: Iterable[int | Index]) -> Index:
    """The sum of `values`."""
    return functools.reduce(operator.add, values, ZERO)


def product(values: Iterable[int | Index]) -> Index:
    """The product of `values`; 1 when there are none."""
    return functools.reduce(operator.mul, values, ONE)


def row_major(indices: Iterable[Index], sizes: Iterable[Index]) -> Index:
    """The position of `indices` in row-major order."""
    return functools.reduce(lambda flat, place: flat * place[1] + place[0], zip(indices, sizes, strict=True), ZERO)


def digits(flat: Index, sizes: Sequence[Index]) -> list[Index]:
    """The inverse of `row_major`."""
    found, inner = [], ONE
    for number, size in enumerate(reversed(sizes)):
        quotient = flat // inner
        found.append(quotient if number == len(sizes) - 1 else quotient % size)
        inner = inner * size
    return found[::-1]


def _recombine(index: Index) -> Index:
    """Apply `c * (x % n) + c * n * (x // n) = c * x` and `c * (x % n) + c * n * ((x // n) % m) = c * (x % (n * m))`
    until they no longer apply."""
    if len(index.terms) < 2 or not any(isinstance(a, Mod) for m, _ in index.terms for a in m):
        return index
    terms = dict(index.terms)
    for monomial, coefficient in index.terms:
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Mod):
                continue
            rest = monomial[:position] + monomial[position + 1 :]
            factor = Index(((rest, coefficient),)) if rest else as_index(coefficient)
            high = floor_divide(atom.numerator, atom.divisor)
            quotient = high * atom.divisor * factor
            if quotient.terms and all(terms.get(m) == c for m, c in quotient.terms):
                for m, _ in quotient.terms:
                    del terms[m]
                del terms[monomial]
                return _from_terms(terms) + factor * atom.numerator
            for other, modulus in _remainders_of(high, index):
                if Index(((other[1], terms[other[0]]),)) is atom.divisor * factor:
                    del terms[other[0]], terms[monomial]
                    return _from_terms(terms) + factor * remainder(atom.numerator, atom.divisor * modulus)
    return index


def _remainders_of(numerator: Index, index: Index) -> list[tuple[tuple[Monomial, Monomial], Index]]:
    """The terms of `index` that contain `numerator % m`: the whole product, its other factors, and `m`."""
    return [
        ((monomial, monomial[:position] + monomial[position + 1 :]), atom.divisor)
        for monomial, _ in index.terms
        for position, atom in enumerate(monomial)
        if isinstance(atom, Mod) and atom.numerator is numerator
    ]


@functools.lru_cache(maxsize=1 << 16)
def upper_bound(index: Index) -> Index:
    """The largest value, with axes at their last position; exact for axes that occur once, else an over-estimate."""
    return total(_bound_term(m, c, c > 0) for m, c in index.terms)


@functools.lru_cache(maxsize=1 << 16)
def lower_bound(index: Index) -> Index:
    """The smallest value; an under-estimate where atoms are correlated."""
    return total(_bound_term(m, c, c < 0) for m, c in index.terms)


def _bound_term(monomial: Monomial, coefficient: int, largest: bool) -> Index:
    if len(monomial) > 1 and any(isinstance(atom, FloorDiv) for atom in monomial):
        ranges = _ranges(monomial)
        if ranges is not None:
            corners = [math.prod(corner) for corner in itertools.product(*ranges)]
            return as_index(coefficient * (max(corners) if largest else min(corners)))
    result = as_index(coefficient)
    for atom in monomial:
        result = result * _atom_range(atom)[largest]
    return result


def _ranges(monomial: Monomial) -> list[tuple[int, int]] | None:
    """The least and the largest value of each factor, if all are numbers."""
    found = [(least.constant, most.constant) for least, most in map(_atom_range, monomial)]
    return None if any(None in pair for pair in found) else found  # type: ignore[return-value]  # none is None


def _has_negative_quotient(monomial: Monomial) -> bool:
    """Whether a factor may be below zero."""
    return any(isinstance(atom, FloorDiv) and not is_nonnegative(atom.numerator) for atom in monomial)


def _atom_range(atom: Atom) -> tuple[Index, Index]:
    """The smallest and the largest value."""
    match atom:
        case Axis() | Indirect():
            return ZERO, atom.size - 1
        case Mod():
            return ZERO, atom.divisor - 1
        case FloorDiv():
            ends = lower_bound(atom.numerator), upper_bound(atom.numerator)
            return floor_divide(ends[0], atom.divisor), floor_divide(ends[1], atom.divisor)
        case Symbol():
            return as_index(atom), as_index(atom)


def is_nonnegative(index: Index) -> bool:
    """Whether `index >= 0` can be proven."""
    low = lower_bound(index)
    if any(_has_negative_quotient(m) for m, _ in low.terms) or any(
        len(m) > 1 and _has_negative_quotient(m) and _ranges(m) is None for m, _ in index.terms
    ):
        return False
    return all(c >= 0 for _, c in low.terms) or _with_minimum_symbols(low) >= 0


def _with_minimum_symbols(index: Index) -> int:
    """A lower bound in integers: positive terms with symbols at their minimum; a negative one gives up."""
    value = 0
    for monomial, coefficient in index.terms:
        if monomial and coefficient < 0:
            return -1
        value += coefficient * math.prod(map(_least_value, monomial))
    return value


def _least_value(atom: Atom) -> int:
    """The least value of a factor that is known not to be negative, as far as its symbols tell."""
    match atom:
        case Symbol():
            return atom.minimum
        case FloorDiv() if (divisor := atom.divisor.constant) is not None:
            return max(_with_minimum_symbols(atom.numerator), 0) // divisor
    return 0


@functools.lru_cache(maxsize=1 << 16)
def is_below(index: Index, bound: Index) -> bool:
    """Whether `0 <= index < bound` can be proven."""
    return is_nonnegative(index) and is_nonnegative(bound - upper_bound(index) - 1)


def _split_divisible(index: Index, divisor: Index) -> tuple[Index, Index]:
    """`(quotient, rest)` with `index == quotient * divisor + rest`, term by term."""
    number = divisor.constant
    if number is not None:
        quotient = Index(tuple((m, c // number) for m, c in index.terms if c % number == 0))
        rest = {m: c for m, c in index.terms if c % number}
        whole, left = divmod(rest.get((), 0), number)
        if whole:
            rest[()] = left
            return quotient + whole, _from_terms(rest)
        return quotient, _from_terms(rest)
    factors, coefficient = divisor.terms[0]
    multiples, others = ZERO, index
    for monomial, c in index.terms:
        remaining = _without(monomial, factors)
        if remaining is not None and c % coefficient == 0:
            part = Index(((remaining, c // coefficient),))
            multiple = part * divisor
            if set(multiple.terms) <= set(others.terms):
                multiples, others = multiples + part, others - multiple
    return multiples, others


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    remaining = list(monomial)
    for factor in factors:
        if factor not in remaining:
            return None
        remaining.remove(factor)
    return tuple(remaining)


def _above_low_part(index: Index, divisor: int) -> tuple[int, Index, Index]:
    """`(unit, high, low)` with `index == unit * high + low`, `0 <= low < unit` and `unit` a factor of `divisor`.

    A division then sees only `high`: `(8 * i + j) // 32` is `i // 4` where `j < 8`. `unit` is 0 if there is none.
    """
    units = {math.gcd(divisor, c) for m, c in index.terms if m}
    for unit in sorted(units, reverse=True):
        low = Index(tuple((m, c) for m, c in index.terms if c % unit))
        if unit > 1 and low.terms and is_below(low, as_index(unit)):
            return unit, Index(tuple((m, c // unit) for m, c in index.terms if c % unit == 0)), low
    return 0, ZERO, ZERO


def floor_divide(index: Index, divisor: Index) -> Index:
    """`index // divisor` for a positive divisor, simplified by the ranges of the atoms."""
    return _divided(index, divisor)[0]


def remainder(index: Index, divisor: Index) -> Index:
    """`index % divisor` for a positive divisor, simplified by the ranges of the atoms."""
    return _divided(index, divisor)[1]


@functools.lru_cache(maxsize=1 << 16)
def _divided(index: Index, divisor: Index) -> tuple[Index, Index]:
    """The quotient and the remainder."""
    number = divisor.constant
    if number == 1:
        return index, ZERO
    if index.constant is not None and number is not None:
        return as_index(index.constant // number), as_index(index.constant % number)
    quotient, rest = _split_divisible(index, divisor)
    if not rest.terms or is_below(rest, divisor):
        return quotient, rest
    if number is None and (rest.constant == -1 or is_below(rest + divisor, divisor)):
        return quotient - 1, rest + divisor
    if number is not None:
        common = math.gcd(number, *(c for _, c in rest.terms))
        if common > 1:
            high, low = _divided(Index(tuple((m, c // common) for m, c in rest.terms)), as_index(number // common))
            return quotient + high, low * common
        unit, high, low = _above_low_part(rest, number)
        if unit:
            high, left = _divided(high, as_index(number // unit))
            return quotient + high, left * unit + low
    high, low = as_index(FloorDiv(rest, divisor)), as_index(Mod(rest, divisor))
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and len(rest.terms[0][0]) == 1:
        inner = rest.terms[0][0][0]
        if isinstance(inner, FloorDiv):
            high = floor_divide(inner.numerator, inner.divisor * divisor)
        elif isinstance(inner, Mod):
            modulus, left = _split_divisible(inner.divisor, divisor)
            if not left.terms:
                high, low = _divided(inner.numerator, divisor)
                high = remainder(high, modulus)
    return quotient + high, low


def substitute(index: Index, replacements: Mapping[Atom, Index], in_value: Callable[[Any], Any] | None = None) -> Index:
    """Replace atoms (axes, usually) everywhere, then simplify.

    `in_value` rewrites the scalar expressions inside `Indirect` atoms; without it they must not mention replaced axes.
    """
    if in_value is None or not any(isinstance(atom, Indirect) for atom in atoms(index)):
        return substituted(index, tuple(replacements.items()))
    return _substitute_terms(index, replacements, in_value)


@functools.lru_cache(maxsize=1 << 16)
def substituted(index: Index, replacements: tuple[tuple[Atom, Index], ...]) -> Index:
    """`substitute` remembered, for indices that read no memory: divisions share parts, each of which is rewritten once."""
    changes = dict(replacements)
    return index if atoms(index).isdisjoint(changes) else _substitute_terms(index, changes, None)


def _substitute_terms(index: Index, replacements: Mapping[Atom, Index], in_value: Callable[[Any], Any] | None) -> Index:
    return total(
        product(_substitute_atom(atom, replacements, in_value) for atom in monomial) * coefficient
        for monomial, coefficient in index.terms
    )


def _substitute_atom(atom: Atom, replacements: Mapping[Atom, Index], in_value: Callable[[Any], Any] | None) -> Index:
    found = replacements.get(atom)
    if found is not None:
        return found
    match atom:
        case FloorDiv() | Mod():
            divide = floor_divide if isinstance(atom, FloorDiv) else remainder
            return divide(*(substitute(part, replacements, in_value) for part in (atom.numerator, atom.divisor)))
        case Indirect() if in_value is not None:
            return as_index(Indirect(in_value(atom.value), substitute(atom.size, replacements, in_value)))
        case _:
            return as_index(atom)


@functools.lru_cache(maxsize=1 << 16)
def atoms(index: Index) -> frozenset[Atom]:
    """All atoms, those inside divisions included; the scalar expressions of `Indirect` atoms are not entered."""
    found: set[Atom] = set()
    for monomial, _ in index.terms:
        for atom in monomial:
            found.add(atom)
            if isinstance(atom, (FloorDiv, Mod)):
                found |= atoms(atom.numerator) | atoms(atom.divisor)
    return frozenset(found)


def coefficient_of(index: Index, axis: Axis) -> Index | None:
    """The stride of `axis`: what multiplies it, or `None` if the axis also occurs inside a division or squared."""
    stride = ZERO
    for monomial, coefficient in index.terms:
        count = monomial.count(axis)
        if count > 1 or any(isinstance(a, (FloorDiv, Mod)) and axis in atoms(as_index(a)) for a in monomial):
            return None
        if count == 1:
            stride = stride + Index(((_without(monomial, (axis,)) or (), coefficient),))
    return stride


def hint(index: Index) -> int:
    """The value with symbols at the sizes seen at compile time; axes must not occur."""
    known = index.constant
    return int(substituted(index, _hints(index))) if known is None else known


@functools.lru_cache(maxsize=1 << 12)
def _hints(index: Index) -> tuple[tuple[Atom, Index], ...]:
    return tuple((atom, as_index(atom.hint)) for atom in atoms(index) if isinstance(atom, Symbol))


ZERO = Index(())
ONE = Index((((), 1),))
