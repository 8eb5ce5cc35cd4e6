"""The harness notices compilers that are wrong, and does not complain of one that is right."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch

from tests.conformance import harness
from tests.conformance.catalogue import Program, all_programs, call
from tests.conformance.harness import ProgramIsBroken, check
from tests.conformance.observation import Observer, SeenTensor, differences
from tests.conformance.wrong_compilers import WRONG

BY_NAME = {program.name: program for program in all_programs()}


@pytest.mark.parametrize(
    ("fault", "name"), [(fault, name) for fault, (_, names) in WRONG.items() for name in names], ids=lambda value: value
)
def test_a_wrong_compiler_is_caught(fault: str, name: str) -> None:
    compile, _ = WRONG[fault]
    assert check(BY_NAME[name], compile), f"nobody noticed that the compiler {fault}"


def test_the_catalogue_is_large_and_each_program_stands_alone() -> None:
    programs = all_programs()
    assert len(programs) >= 400
    assert {program.topic for program in programs if program.core} == {program.topic for program in programs}


def test_a_program_that_raises_unannounced_is_refused() -> None:
    def factory():
        return lambda x: x.missing, [call(torch.ones(1))]

    with pytest.raises(ProgramIsBroken, match="missing"):
        check(Program("broken", "none", factory), lambda function: function)


def test_a_program_that_never_raises_what_it_announces_is_refused() -> None:
    def factory():
        return lambda x: x, [call(torch.ones(1))]

    with pytest.raises(ProgramIsBroken, match="KeyError"):
        check(Program("broken", "none", factory, raises=KeyError), lambda function: function)


def observed(*values: object) -> object:
    return Observer().describe(values)


def test_identity_and_shared_storage_are_seen() -> None:
    x, y = torch.ones(2), torch.ones(2)
    assert list(differences(observed(x, x), observed(x, y), "it"))
    assert list(differences(observed(x, x[:1]), observed(x, y[:1]), "it"))
    assert not list(differences(observed(x, x[:1]), observed(y, y[:1]), "it"))


def test_integers_are_exact_and_nan_has_its_place() -> None:
    assert list(differences(observed(torch.tensor([1, 2])), observed(torch.tensor([1, 3])), "it"))
    nan = torch.tensor([float("nan"), 1.0])
    assert not list(differences(observed(nan), observed(nan.clone()), "it"))
    assert list(differences(observed(nan), observed(nan.flip(0)), "it"))
    infinities = torch.tensor([float("inf"), -float("inf")])
    assert list(differences(observed(infinities), observed(-infinities), "it"))


def test_a_reference_in_double_decides_how_far_floats_may_be() -> None:
    exact = torch.tensor([1.0, 3.0], dtype=torch.float64)
    eager = (exact + 1e-5).float()
    records = [Observer().describe(value) for value in (eager, (exact - 1e-5).float(), (exact - 1e-4).float(), exact)]
    assert all(isinstance(record, SeenTensor) for record in records)
    reference = dataclasses.replace(records[3], dtype=torch.float32)
    assert not list(differences(records[0], records[1], "it", reference))
    assert list(differences(records[0], records[2], "it", reference))


def test_strides_of_single_elements_do_not_matter() -> None:
    x = torch.ones(1, 3)
    assert not list(differences(observed(x), observed(x.as_strided((1, 3), (7, 1))), "it"))
    assert list(differences(observed(torch.ones(2, 3)), observed(torch.ones(3, 2).t()), "it"))


def test_a_program_that_takes_too_long_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as an exception of its first call, with all the time of the world for the second."""
    calls = []

    def slow(x):
        calls.append(x)
        try:
            time.sleep(60)
        except Exception:
            return x

    monkeypatch.setattr(harness, "SECONDS_PER_RUN", 1)
    with pytest.raises(harness.TookTooLong):
        harness.run(Program("slow", "harness", lambda: (slow, [call(torch.ones(2))] * 2)), lambda function: function)
    assert len(calls) == 1
