"""Generators from outside that have not begun: traced to their end where the function takes them there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import minicompile
from tests.capture.support import capture, equal, kinds


def scaled(xs, factor):
    for x in xs:
        yield x * factor


def total(items, x):
    for item in items:
        x = x + item
    return x


def network() -> torch.nn.Module:
    """Two layers, one of which is a part of a part."""
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.Linear(3, 3)))


def norm(parameters, x):
    return x * torch.stack([parameter.norm() for parameter in parameters]).norm()


def test_a_generator_that_is_given_is_run_to_its_end_in_the_graph() -> None:
    compiled, net, x = capture(norm, fullgraph=True), network(), torch.ones(3)
    for _ in range(2):
        parameters = net.parameters()
        assert equal(compiled(parameters, x), norm(net.parameters(), x))
        assert list(parameters) == []
    assert len(compiled.records.graphs) == 1


def test_a_generator_that_lives_across_a_break_does_not_break_again() -> None:
    def function(net, x):
        parameters = net.named_parameters()
        if x.sum() > 0:
            x = x * 2
        for name, parameter in parameters:
            x = x + parameter.sum() * len(name)
        return x

    compiled, net = capture(function), network()
    for sign in (1, -1, 1):
        assert equal(compiled(net, torch.full((3,), sign)), function(net, torch.full((3,), sign)))
    assert kinds(compiled) == ["branch on a tensor"]


def left_early(items, x):
    for item in items:
        x = x + item
        break
    return x, items


def asked_once(items, x):
    return x + next(items), items


def asked_around_a_break(items, x):
    first = next(items)
    print("between", end="")
    return x + first, items


@pytest.mark.parametrize("function", [left_early, asked_once, asked_around_a_break])
def test_a_generator_that_is_left_early_goes_on_outside(function: Any) -> None:
    xs = [torch.ones(2), torch.full((2,), 2.0), torch.full((2,), 3.0)]
    compiled = capture(function)
    for _ in range(2):
        items = scaled(xs, 3)
        (result, same), (expected, other) = compiled(items, xs[0]), function(scaled(xs, 3), xs[0])
        assert equal(result, expected) and same is items
        assert equal(list(same), list(other))


def test_where_a_generator_is_makes_a_variant() -> None:
    compiled, xs = capture(total), [torch.ones(2), torch.full((2,), 2.0)]
    for begun in (False, True, False, True, True, False):
        mine, reference = scaled(xs, 2), scaled(xs, 2)
        if begun:
            next(mine), next(reference)
        assert equal(compiled(mine, xs[0]), total(reference, xs[0]))
        assert equal(compiled(mine, xs[0]), xs[0])  # it has ended


def test_other_generators_are_told_apart() -> None:
    def halved(xs, factor):
        for x in xs:
            yield x / factor

    compiled, xs = capture(total), [torch.ones(2), torch.full((2,), 2.0)]
    for make, factor in ((scaled, 2), (halved, 2), (scaled, 4), (scaled, 2), (halved, 4)):
        assert equal(compiled(make(xs, factor), xs[0]), total(make(xs, factor), xs[0]))


def test_one_generator_by_two_names() -> None:
    def function(first, second, x):
        return x + sum(first), len(list(second))

    compiled, xs = capture(function), [torch.ones(2), torch.full((2,), 2.0)]
    for alike in (False, True, False):
        mine, reference = ((one, one if alike else scaled(xs, 3)) for one in (scaled(xs, 2), scaled(xs, 2)))
        assert equal(compiled(*mine, xs[0]), function(*reference, xs[0]))


def test_what_a_generator_does_to_others_is_seen_once() -> None:
    def logging(xs, seen):
        try:
            for x in xs:
                seen.append(len(seen))
                yield x
        finally:
            seen.append("end")

    def function(items, x, seen):
        seen.append("before")
        return total(items, x), len(seen)

    compiled, xs = capture(function, fullgraph=True), [torch.ones(2), torch.full((2,), 2.0)]
    for _ in range(2):
        mine: list[Any] = []
        reference: list[Any] = []
        assert equal(compiled(logging(xs, mine), xs[0], mine), function(logging(xs, reference), xs[0], reference))
        assert mine == reference == ["before", 1, 2, "end"]


def test_a_generator_that_raises_has_ended() -> None:
    def failing(xs):
        yield from xs
        raise ValueError("no more")

    def function(items, x):
        try:
            return total(items, x)
        except ValueError as error:
            return x * 2, str(error), list(items)

    compiled, xs = capture(function, fullgraph=True), [torch.ones(2), torch.full((2,), 2.0)]
    for _ in range(2):
        items = failing(xs)
        assert equal(compiled(items, xs[0]), function(failing(xs), xs[0])) and items.gi_frame is None


def test_parameters_of_every_sort_reach_the_body() -> None:
    def picked(x, /, y, *more, last, **named):
        inner = [lambda: y]
        yield from (x, inner[0](), *more, last, *named.values())

    compiled, xs = capture(total, fullgraph=True), [torch.full((2,), float(n)) for n in range(6)]
    for _ in range(2):
        mine, reference = (picked(xs[0], xs[1], xs[2], xs[3], last=xs[4], other=xs[5]) for _ in range(2))
        assert equal(compiled(mine, xs[0]), total(reference, xs[0]))


def test_a_disabled_function_s_generators_are_not_traced() -> None:
    disabled = minicompile.disable(lambda xs: (yield from xs))
    compiled, xs = capture(total), [torch.ones(2), torch.full((2,), 2.0)]
    assert equal(compiled(disabled(xs), xs[0]), total(xs, xs[0]))
    assert set(kinds(compiled)) == {"iterator"}


def test_many_generators_do_not_use_up_the_variants() -> None:
    compiled = capture(norm)
    for size in range(2, 14):
        layer = torch.nn.Linear(3, 2)
        setattr(layer, f"more_{size}", torch.nn.Linear(3, 2))
        assert equal(compiled(layer.parameters(), torch.ones(2)), norm(layer.parameters(), torch.ones(2)))
    assert not compiled.records.fallbacks
