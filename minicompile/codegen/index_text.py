"""Index expressions as source, for kernels (Triton integers) and for the host (Python integers).

This module must not know where an index is used.
"""

from collections.abc import Callable

from minicompile.codegen.triton_text import UNARY, Text, infix
from minicompile.ir.index import (
    Atom,
    FloorDiv,
    Index,
    Mod,
    Symbol,
    atoms,
    hint,
    is_nonnegative,
    lower_bound,
    total,
    upper_bound,
)


def index_text(index: Index, name: Callable[[Atom], Text | None]) -> Text:
    """The source of `index`; `name` gives the text of an atom, or `None` for a division that is to be spelled out."""
    if not index.terms:
        return Text("0")
    (monomial, first), *rest = sorted(index.terms, key=lambda term: (not term[0], term[1] < 0, -abs(term[1])))
    result = _term_text(monomial, first, name)
    for monomial, coefficient in rest:
        result = infix(result, "-" if coefficient < 0 else "+", _term_text(monomial, abs(coefficient), name))
    return result


def _term_text(monomial: tuple[Atom, ...], coefficient: int, name: Callable[[Atom], Text | None]) -> Text:
    number = Text(str(coefficient)) if coefficient >= 0 else Text(str(coefficient), UNARY)
    if not monomial:
        return number
    result, *others = (name(atom) or division_text(atom, name) for atom in monomial)
    for factor in others:
        result = infix(result, "*", factor)
    if coefficient == 1:
        return result
    return infix(result, "*", number) if coefficient > 0 else infix(number, "*", result)


def division_text(atom: Atom, name: Callable[[Atom], Text | None]) -> Text:
    """A floor division or remainder spelled out; right for negative numerators too, where C's rounding differs."""
    if not isinstance(atom, (FloorDiv, Mod)):
        raise TypeError(f"no text for {atom}")
    divisor = index_text(atom.divisor, name)
    numerator, shift = atom.numerator, 0
    if not is_nonnegative(numerator):
        shift = _positive_shift(numerator, atom.divisor)
        numerator = numerator + atom.divisor * shift
    dividend = index_text(numerator, name)
    if not is_nonnegative(numerator):
        return _divided_by_sign(atom, dividend, divisor)
    if isinstance(atom, Mod):
        return infix(dividend, "%", divisor)
    quotient = infix(dividend, "//", divisor)
    return infix(quotient, "-", Text(str(shift))) if shift else quotient


def _positive_shift(numerator: Index, divisor: Index) -> int:
    """How many divisors make the numerator positive; 0 if that is not known."""
    number, lowest = divisor.constant, lower_bound(numerator).constant
    if number is not None and lowest is not None:
        return -(lowest // number)
    return 1 if is_nonnegative(numerator + divisor) else 0


def _divided_by_sign(atom: FloorDiv | Mod, dividend: Text, divisor: Text) -> Text:
    """The division of a number of unknown sign: `((a % n) + n) % n` is a remainder in Python and in C."""
    rest = infix(infix(dividend, "%", divisor), "+", divisor)
    rest = infix(rest, "%", divisor)
    return rest if isinstance(atom, Mod) else infix(infix(dividend, "-", rest), "//", divisor)


def host(index: Index) -> Text:
    """A Python expression over the size symbols' names."""
    return index_text(index, lambda atom: Text(atom.name) if isinstance(atom, Symbol) else None)


def extent(index: Index) -> int:
    """No partial sum of `index` exceeds this in magnitude (symbols at their hints)."""
    total = 0
    for term in index.terms:
        single = Index((term,))
        total += max(abs(hint(upper_bound(single))), abs(hint(lower_bound(single))))
    for atom in atoms(index):
        if isinstance(atom, (FloorDiv, Mod)):
            total = max(total, extent(atom.numerator))
    return total


def bounds(index: Index) -> list[Index]:
    """What no partial sum of `index` exceeds in magnitude, as expressions over symbols."""
    found = [total(upper_bound(Index(((monomial, abs(c)),))) for monomial, c in index.terms)]
    for atom in atoms(index):
        if isinstance(atom, (FloorDiv, Mod)):
            found += bounds(atom.numerator)
    return found


def symbols_of(index: Index) -> set[Symbol]:
    """The size symbols in `index`, those in the sizes of its axes not included."""
    return {atom for atom in atoms(index) if isinstance(atom, Symbol)}

