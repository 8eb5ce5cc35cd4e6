"""Lists from outside that grow: what is asked of their length and their end does not fix how long they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.capture.support import capture, equal


def until_there_are_enough(x, n):
    outs = []
    while len(outs) < n:
        x = x * 0.5
        outs.append(x)
        if x.sum() > 100:
            break
    return torch.stack(outs)


def each_from_the_last(x, n):
    tags = [0]
    for t in range(n):
        tags.append(int(x[t % 3].argmax()) + tags[-1])
    return tags


def from_the_last_two(x, n):
    states = [x, x + 1]
    for i in range(n):
        states.append(torch.tanh(states[-1] * states[-2] + i))
        if states[-1].sum() > 100:
            states.append(x)
    return states[-1], states[-2], len(states)


@pytest.mark.parametrize("function", [until_there_are_enough, each_from_the_last, from_the_last_two])
def test_a_list_that_grows_around_breaks_does_not_use_up_the_variants(function: Any) -> None:
    compiled, x = capture(function), torch.randn(3, 4)
    for n in (12, 14, 12, 3):
        assert equal(compiled(x, n), function(x, n))
    assert not compiled.records.fallbacks
    assert len(compiled.records.recompiles) <= 6


class Remembers(torch.nn.Module):
    """Adds what it was last given, which it keeps in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = []

    def forward(self, x):
        y = x + self.kept[-1] * len(self.kept) if self.kept else x
        self.kept.append(x * 0.5)
        return y, len(self.kept), self.kept[-1]


def test_a_module_whose_list_grows_in_each_call() -> None:
    mine, reference = Remembers(), Remembers()
    compiled = capture(mine)
    for n in range(14):
        assert equal(compiled(torch.ones(2) * n), reference(torch.ones(2) * n))
    assert equal(mine.kept, reference.kept)
    assert not compiled.records.fallbacks and len(compiled.records.recompiles) <= 3


def test_the_end_is_what_it_is_at_each_look() -> None:
    def function(items, other, x):
        seen = [len(items), items[-1]]
        items.append(x)
        seen += [len(items), items[-1], items[-2]]
        other.append(4)
        seen += [len(items), items[-1], bool(items), items[-3:], len(other)]
        items[0] = items[-2]
        seen += [len(items), items[-1], items[0], items.pop(), items[-1], len(items)]
        return seen

    compiled = capture(function)
    for n, alike in ((1, False), (2, False), (3, False), (3, True), (5, False), (4, True), (4, False)):
        mine, reference = list(range(n)), list(range(n))
        others = (mine, reference) if alike else ([7] * n, [7] * n)
        x = torch.ones(2)
        assert equal(compiled(mine, others[0], x), function(reference, others[1], x))
        assert equal(mine, reference) and equal(others[0], others[1])


def test_the_end_of_a_list_is_one_object_with_one_of_its_places() -> None:
    def function(rows, x):
        rows[-1].append(len(rows))
        if len(rows) > 2:
            rows[2].append("third")
        return x + len(rows[-1]), [list(row) for row in rows]

    compiled = capture(function)
    for n in (2, 3, 4, 3, 2, 5, 3):
        mine, reference = ([[] for _ in range(n)] for _ in range(2))
        assert equal(compiled(mine, torch.ones(2)), function(reference, torch.ones(2)))
        assert mine == reference


def test_a_list_that_is_too_short_raises() -> None:
    def function(items, x):
        return x * items[-2]

    compiled = capture(function)
    for n in (3, 4, 5):
        assert equal(compiled([*range(n)], torch.ones(2)), function([*range(n)], torch.ones(2)))
    with pytest.raises(IndexError):
        compiled([1], torch.ones(2))


def test_whether_a_list_has_elements_does_not_fix_how_many() -> None:
    def function(items, x):
        return x * 2 if items else x

    compiled = capture(function)
    for n in (3, 4, 0, 7, 9, 0, 1):
        assert equal(compiled([0] * n, torch.ones(2)), function([0] * n, torch.ones(2)))
    assert len(compiled.records.recompiles) == 1
