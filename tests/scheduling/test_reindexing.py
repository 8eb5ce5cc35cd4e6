"""Divisions keep their values however they are simplified, and changes of axes are what they claim to be."""

from __future__ import annotations

import itertools
import random

from minicompile.ir.index import Axis, as_index, floor_divide, remainder, total
from minicompile.scheduling.reindexing import flatten, is_one_to_one, match_axes, move, solve, step_of, unflatten
from tests.evaluate import evaluate

I, J, K = Axis("i", 6), Axis("j", 8), Axis("k", 3)


def points_of(*axes: Axis) -> list[dict[Axis, int]]:
    """Every point of a small space."""
    return [dict(zip(axes, p, strict=True)) for p in itertools.product(*(range(int(a.size)) for a in axes))]


def test_divisions_and_sums_of_them_keep_their_values() -> None:
    generator = random.Random(0)
    for _ in range(600):
        index = total(as_index(a) * generator.choice([0, 1, 2, 3, 4, 6, 8, 12, 24, -1]) for a in (I, J, K))
        index = index + generator.choice([0, 0, 1, 5, -2])
        for _ in range(generator.randint(1, 3)):
            divisor = generator.choice([2, 3, 4, 6, 8, 12, 24, 48])
            divide = generator.random() < 0.5
            result = floor_divide(index, as_index(divisor)) if divide else remainder(index, as_index(divisor))
            for values in points_of(I, J, K)[::7]:
                number = evaluate(index, values)
                assert evaluate(result, values) == (number // divisor if divide else number % divisor)
            other = remainder(index, as_index(generator.choice([2, 4, 8]))) + as_index(generator.choice([I, J, K]))
            combined = result * generator.choice([1, 2, 8]) + other
            for values in points_of(I, J, K)[::11]:
                assert evaluate(combined, values) == evaluate(combined - other, values) + evaluate(other, values)
            index = combined


def test_a_division_sees_past_low_digits() -> None:
    flat = as_index(I) * 8 + as_index(J)
    assert floor_divide(flat, as_index(24)) is floor_divide(as_index(I), as_index(3))
    assert remainder(flat, as_index(24)) is remainder(as_index(I), as_index(3)) * 8 + as_index(J)


def test_adjacent_remainders_join() -> None:
    r = as_index(Axis("r", 7168))
    assert remainder(floor_divide(r, as_index(56)), as_index(56)) * 56 + remainder(r, as_index(56)) is remainder(
        r, as_index(3136)
    )


def test_solve_inverts_a_permuted_store() -> None:
    access = as_index(I) + as_index(J) * 6
    x = Axis("x", 48)
    solved = solve(access, (I, J), as_index(x))
    assert solved is not None
    for values in points_of(x):
        place = {axis: evaluate(image, values) for axis, image in solved}
        assert evaluate(access, place) == values[x] and place[I] < 6 and place[J] < 8


def test_matching_a_transposed_reader_swaps_the_axes() -> None:
    a, b = Axis("a", 8), Axis("b", 6)
    changes = match_axes((I, J), as_index(I) * 8 + as_index(J), (a, b), as_index(b) * 8 + as_index(a))
    assert changes == ((I, as_index(b)), (J, as_index(a)))


def test_matching_refuses_what_is_not_one_to_one() -> None:
    a = Axis("a", 48)
    assert match_axes((I, J), as_index(I) * 8 + as_index(J), (a,), as_index(a) // 2) is None
    assert not is_one_to_one(((I, as_index(I)), (J, as_index(I))), (I, J))
    assert not is_one_to_one(((I, remainder(as_index(a), as_index(6))), (J, as_index(a) // 8)), (a,))


def test_unflatten_is_the_inverse_of_flatten() -> None:
    x = Axis("x", 144)
    changes = unflatten(as_index(x), (I, J, K))
    assert is_one_to_one(changes, (x,))
    assert move(flatten((I, J, K)), changes) is as_index(x)


def test_steps_are_those_between_neighbours_of_a_block() -> None:
    generator = random.Random(1)
    for _ in range(100):
        inner, stride, factor = generator.choice([2, 4]), generator.choice([1, 3, 40]), generator.choice([7, 100])
        j = as_index(J)
        index = floor_divide(j, as_index(inner)) * factor + remainder(j, as_index(inner)) * stride + as_index(I) * 5
        for values in points_of(I, J):
            if values[J] % inner != inner - 1:
                assert evaluate(index, {**values, J: values[J] + 1}) - evaluate(index, values) == step_of(index, J)
        assert step_of(index, I) == 5 and step_of(index, K) == 0
    assert step_of(floor_divide(as_index(I) + as_index(J), as_index(3)), I) is None
