"""Index arithmetic agrees with Python's integers, and its normal form makes equal things one object."""

from __future__ import annotations

import itertools
import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from minicompile.ir import index as index_module
from minicompile.ir.index import (
    Axis,
    Index,
    Symbol,
    as_index,
    coefficient_of,
    is_below,
    is_nonnegative,
    lower_bound,
    substitute,
    upper_bound,
)
from tests.evaluate import evaluate

AXES = (Axis("a", 3), Axis("b", 4), Axis("c", 5))
POINTS = [dict(zip(AXES, values)) for values in itertools.product(range(3), range(4), range(5))]


N, M = Symbol("n", 8, 2), Symbol("m", 5, 0)
SIZES = (as_index(N), as_index(N) * 2, as_index(M) + 1, as_index(N) * as_index(M) + as_index(N),
         2 * as_index(N) + 3 * as_index(M), as_index(3))
SIZED = (Axis("i", as_index(N)), Axis("j", as_index(M) + 1), Axis("k", 3))
PLACES = [{N: n, M: m, SIZED[0]: i, SIZED[1]: j, SIZED[2]: k} for n, m in ((2, 0), (3, 4), (5, 1), (7, 2))
          for i, j, k in itertools.product({0, 1, n - 1}, {0, m}, (0, 2))]  # fmt: skip


def expressions_over_sizes() -> st.SearchStrategy[Index]:
    leaves = st.sampled_from([as_index(atom) for atom in (N, M, *SIZED)]) | st.integers(-4, 6).map(as_index)

    def grow(inner):
        return st.one_of(
            st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
            st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
            st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
            st.tuples(inner, st.sampled_from(SIZES)).map(lambda p: p[0] // p[1]),
            st.tuples(inner, st.sampled_from(SIZES)).map(lambda p: p[0] % p[1]),
        )

    return st.recursive(leaves, grow, max_leaves=6)


def expressions() -> st.SearchStrategy[Index]:
    leaves = st.sampled_from([as_index(a) for a in AXES]) | st.integers(-7, 12).map(as_index)

    def grow(inner):
        return st.one_of(
            st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
            st.tuples(inner, st.integers(-3, 6)).map(lambda p: p[0] * p[1]),
            st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
            st.tuples(inner, st.integers(1, 9)).map(lambda p: p[0] // p[1]),
            st.tuples(inner, st.integers(1, 9)).map(lambda p: p[0] % p[1]),
        )

    return st.recursive(leaves, grow, max_leaves=8)


@settings(max_examples=300, deadline=None)
@given(expressions(), st.integers(1, 9))
def test_division_and_remainder_are_pythons(index, divisor):
    for point in POINTS[::7]:
        value = evaluate(index, point)
        assert evaluate(index // divisor, point) == value // divisor
        assert evaluate(index % divisor, point) == value % divisor
        assert evaluate((index // divisor) * divisor + index % divisor, point) == value


@settings(max_examples=300, deadline=None)
@given(expressions())
def test_bounds_hold(index):
    low, high = int(lower_bound(index)), int(upper_bound(index))
    for point in POINTS:
        assert low <= evaluate(index, point) <= high


@settings(max_examples=400, deadline=None)
@given(expressions_over_sizes(), expressions_over_sizes(), st.sampled_from(SIZES))
def test_what_is_proven_of_varying_sizes_holds_at_each(index, other, divisor):
    positive, below = is_nonnegative(index), is_below(index, other)
    for place in PLACES:
        value, size = evaluate(index, place), evaluate(divisor, place)
        assert value >= 0 or not positive
        assert 0 <= value < evaluate(other, place) or not below
        assert evaluate(index // divisor, place) == value // size
        assert evaluate(index % divisor, place) == value % size


def test_a_place_before_the_end_of_a_row_is_in_that_row():
    row, n = as_index(SIZED[0]), as_index(N)
    assert (n * row + n - 1) // n is row and (n * row + n - 1) % n is n - 1
    assert not is_nonnegative(as_index(-3) // n) and not is_nonnegative(row * (as_index(-3) // n))


def test_the_least_value_of_a_quotient_follows_from_that_of_its_size():
    n = as_index(N)
    assert is_nonnegative((n + 2) // 4 - 1) and is_nonnegative(n * ((n + 4) // 3) - 4)
    assert not is_nonnegative((n + 1) // 4 - 1) and not is_nonnegative((n - 3) // 4)


def test_bounds_of_products_of_negative_quotients():
    a, b, _ = map(as_index, AXES)
    index = ((a - 5) // 2) * ((b - 6) // 3)
    values = [evaluate(index, point) for point in POINTS]
    assert int(lower_bound(index)) <= min(values) and max(values) <= int(upper_bound(index))


@settings(max_examples=200, deadline=None)
@given(expressions(), expressions(), expressions())
def test_substitution_is_evaluation(index, first, second):
    replaced = substitute(index, {AXES[0]: first % 3, AXES[1]: second % 4})
    for point in POINTS[::11]:
        inner = {AXES[0]: evaluate(first, point) % 3, AXES[1]: evaluate(second, point) % 4, AXES[2]: point[AXES[2]]}
        assert evaluate(replaced, point) == evaluate(index, inner)


@settings(max_examples=200, deadline=None)
@given(expressions(), expressions())
def test_equal_sums_are_one_object(first, second):
    assert first + second is second + first
    assert (first + second) - second == first or evaluate(first + second - second, POINTS[5]) == evaluate(first, POINTS[5])


def test_simplifications():
    a, b, c = map(as_index, AXES)
    assert (4 * a + b) // 4 is a and (4 * a + b) % 4 is b
    x = 20 * a + 5 * b + c
    assert 4 * ((x // 5) % 4) + 16 * (x // 20) is 4 * (x // 5)
    flat = as_index(Axis("f", 60))
    assert 20 * (flat // 20) + 5 * ((flat // 5) % 4) + flat % 5 is flat
    assert is_below(x, as_index(60)) and not is_below(x, as_index(59))
    assert coefficient_of(x, AXES[1]) is as_index(5) and coefficient_of(x % 7, AXES[1]) is None


def test_symbols():
    n = as_index(Symbol("n", 8, 2))
    axis = as_index(Axis("i", n))
    assert (n * axis + axis) // n is not None
    inner = as_index(Axis("j", n))
    assert (n * axis + inner) // n is axis and (n * axis + inner) % n is inner
    assert evaluate(n * 3, {}) == 24


def test_rows_as_long_as_a_sum_of_sizes():
    length = 16 * ((as_index(N) + 1) // 2) + 4 * as_index(M) + 2
    row, column = as_index(SIZED[0]), as_index(Axis("column", length))
    assert (length * row + column) // length is row and (length * row + column) % length is column
    assert (length * row * 3 + column + length) // length is 3 * row + 1


def test_parts_that_divisions_share_are_replaced_once(monkeypatch):
    row, index = as_index(SIZED[0]), as_index(SIZED[1])
    for divisor in range(3, 15):
        index = (index + row) // divisor * 2 + (index + row) % divisor
    replaced: list[Index] = []
    plain = index_module._substitute_terms
    monkeypatch.setattr(index_module, "_substitute_terms", lambda part, *rest: replaced.append(part) or plain(part, *rest))
    place = {SIZED[0]: as_index(Axis("other", 2)), SIZED[1]: as_index(Axis("another", 9))}
    assert evaluate(substitute(index, place), dict.fromkeys((Axis("other", 2), Axis("another", 9)), 1)) == evaluate(
        index, {SIZED[0]: 1, SIZED[1]: 1})
    assert len(replaced) == len(set(replaced)) <= 30


def test_pickling_keeps_identity():
    a, b, _ = map(as_index, AXES)
    index = (a * 3 + b) % 7
    assert pickle.loads(pickle.dumps(index)) is index
    assert index.digest == pickle.loads(pickle.dumps(index)).digest
