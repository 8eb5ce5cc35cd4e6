"""Checked mode finds a kernel that computes something else, and the user still gets eager's result."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
import warnings

import pytest
import torch

import minicompile
import minicompile.compiler
from minicompile.report import checked


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """Kernels whose `rsqrt` is a `sqrt`; the compile function of checked mode, and its options."""
    generate = minicompile.compiler.generate_program

    replaced = [("tl.rsqrt(", "tl.sqrt(")]

    def generate_wrong(*args, **kwargs):
        program = generate(*args, **kwargs)
        kernels = tuple(dataclasses.replace(k, text=wrong(k.text)) for k in program.kernels)
        return dataclasses.replace(program, text=wrong(program.text), kernels=kernels, key=program.key[::-1])

    def wrong(text: str) -> str:
        return text.replace(*replaced[-1])

    monkeypatch.setattr(minicompile.compiler, "generate_program", generate_wrong)

    def compile(function, check=2, wrong=replaced[0]):
        replaced.append(wrong)
        return minicompile.compile(function, options={"check": check, "cache": False, "cache_directory": tmp_path})

    return compile


def wrong_here(x, w):
    x = x @ w
    y = (x * 2).sin()
    return (torch.rsqrt(y.abs() + 1) * 3).softmax(-1), x


def differences(compiled) -> list[checked.Difference]:
    return minicompile.api.compiled_function(compiled).compiler.checker.differences


def test_a_correct_function_passes_without_a_word(tmp_path: pathlib.Path) -> None:
    def f(x, w):
        x = x.clone().mul_(2)
        return torch.nn.functional.gelu(x @ w).sum(-1), x.argmax(-1)

    options = {"check": 3, "cache_directory": tmp_path, "suppress_errors": False}
    compiled = minicompile.compile(f, options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (torch.float32, torch.bfloat16):
            x, w = torch.randn(8, 16, dtype=dtype, requires_grad=True), torch.randn(16, 16, dtype=dtype)
            compiled(x, w)[0].sum().backward()
    assert differences(compiled) == [] and compiled.compiler.graphs


def test_a_wrong_kernel_is_named_and_eagers_result_returned(broken) -> None:
    x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, 16)
    compiled = broken(wrong_here)
    with pytest.warns(UserWarning, match="first deviation: .*rsqrt.*kernel"):
        found = compiled(x, w)
    expected = wrong_here(x, w)
    torch.testing.assert_close(found, expected)
    found[0].square().sum().backward()
    gradient, x.grad = x.grad, None
    expected[0].square().sum().backward()
    torch.testing.assert_close(gradient, x.grad)


def test_the_reproducer_is_one_operation_and_runs_alone(broken) -> None:
    compiled = broken(wrong_here)
    with pytest.warns(UserWarning):
        compiled(torch.randn(8, 16), torch.randn(16, 16))
    (found,) = differences(compiled)
    script = (found.folder / "repro.py").read_text()
    body = script[script.index("def forward") : script.index("def run")]
    assert body.count(" = torch.") == 1 and "torch.rsqrt(" in body
    assert "tl.sqrt" in (found.folder / "kernel.py").read_text()
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, found.folder / "repro.py"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert run.returncode == 0 and "value 0: largest difference" in run.stdout, run.stderr


def test_inputs_changed_in_place_are_as_eager_leaves_them(broken) -> None:
    def f(x, seen):
        seen.append(1)
        x.add_(1)
        return torch.rsqrt(x).sum()

    compiled, seen = broken(f), []
    x = torch.rand(8)
    expected = x.clone() + 1
    with pytest.warns(UserWarning):
        found = compiled(x, seen)
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(found, torch.rsqrt(expected).sum())
    assert seen == [1]


def test_random_numbers_continue_where_they_would_have() -> None:
    def f(x):
        return x * torch.rand_like(x), torch.dropout(x, 0.5, True)

    runs = []
    for check in (0, 2):
        compiled = minicompile.compile(f, options={"check": check})
        torch.manual_seed(0)
        runs.append([compiled(torch.ones(32)), compiled(torch.ones(32)), torch.rand(3)])
        assert not check or differences(compiled) == []
    torch.testing.assert_close(runs[0], runs[1])


def test_a_wrong_backward_is_found(broken) -> None:
    def f(x):
        return x.sqrt()

    def norm(x):
        return torch.nn.functional.layer_norm(x, (16,))

    x = torch.randn(8, 16, requires_grad=True)
    compiled = broken(norm)
    with pytest.warns(UserWarning, match="backward"):
        compiled(x).square().sum().backward()
    gradient, x.grad = x.grad, None
    norm(x).square().sum().backward()
    torch.testing.assert_close(gradient, x.grad, atol=1e-5, rtol=1e-4)


def test_the_reproducer_of_a_backward_is_one_operation_too(broken) -> None:
    def f(x):
        return (x * 2).sin().exp().softmax(-1), x.sqrt().tanh()

    x = torch.rand(4, 8, requires_grad=True)
    compiled = broken(f, wrong=("sine_after(quarters + 1, rest)", "sine_after(quarters, rest)"))
    with pytest.warns(UserWarning, match="backward") as told:
        sum(each.square().sum() for each in compiled(x)).backward()
    assert [entry.filename for entry in told] == [__file__]
    (found,) = compiled.differences
    assert (found.folder / "repro.py").read_text().count("torch.ops.") == 1


def test_powers_of_negative_numbers_are_no_differences(tmp_path: pathlib.Path) -> None:
    compiled = minicompile.compile(lambda x: (-2) ** x, options={"check": 1, "cache_directory": str(tmp_path)})
    assert compiled(torch.arange(4)).tolist() == [1, -2, 4, -8] and not compiled.differences


@pytest.mark.parametrize(("setting", "due"), [(2, [1, 2, 100, 200]), ((1, 3), [1, 3, 6, 9])])
def test_the_first_calls_and_every_so_many_are_checked(setting, due, tmp_path) -> None:
    checker = checked.Checker(setting, tmp_path, lambda captured: None)
    assert [number for number in range(1, 201) if checker.is_due(number)][: len(due)] == due


def test_later_calls_are_not_checked(broken) -> None:
    compiled = broken(lambda x: torch.rsqrt(x), check=1)
    x = torch.rand(8) + 1
    with pytest.warns(UserWarning):
        compiled(x)
    assert not torch.allclose(compiled(x), torch.rsqrt(x)) and len(differences(compiled)) == 1
