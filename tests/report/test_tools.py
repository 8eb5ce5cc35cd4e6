"""Stages, profiles and comparisons of compiled functions, and the commands that print reports."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch

import minicompile
from minicompile import cli
from minicompile.report.compare import compare
from tests.report import programs


def test_every_stage_is_shown_in_order() -> None:
    compiled = minicompile.compile(programs.norm)
    compiled(torch.randn(4, 16, requires_grad=True), torch.randn(16)).sum().backward()
    found = minicompile.stages(compiled)
    names = [name.removeprefix("norm: ") for name in found]
    assert names == [
        "captured", "guards", "joint", "partitioned", "forward loops", "forward schedule", "forward program",
        "backward loops", "backward schedule", "backward program",
    ]  # fmt: skip
    assert "rsqrt(" in found["norm: captured"] and "@triton.jit" in found["norm: forward program"]
    assert str(found).index("captured") < str(found).index("backward program")


def test_stages_of_a_graph_from_the_disk_are_made_again(tmp_path: pathlib.Path) -> None:
    for _ in range(2):
        compiled = minicompile.compile(programs.norm, options={"cache_directory": tmp_path})
        compiled(torch.randn(4, 16), torch.randn(16))
    assert "for i0" in minicompile.stages(compiled)["norm: forward loops"]


def test_a_graph_from_the_disk_is_profiled_and_asked_about_as_any_other(tmp_path: pathlib.Path) -> None:
    for _ in range(2):
        compiled = minicompile.compile(programs.Model(), options={"cache_directory": str(tmp_path)})
        compiled(torch.randn(4, 16)).sum().backward()
    assert minicompile.api.compiled_function(compiled).compiler.graphs[0].parts["forward"].schedule is None
    with minicompile.profile() as taken:
        compiled(torch.randn(4, 16))
    assert any(event.key.startswith("blocks.") for event in taken.key_averages())
    assert "tangent" in next(text for name, text in minicompile.stages(compiled).items() if "joint" in name)
    assert minicompile.why_not_fused(compiled, "layer_norm", "linear")


def test_a_trace_has_the_users_module_names(tmp_path: pathlib.Path) -> None:
    model = programs.Model()
    compiled = minicompile.compile(model, options={"cache": False})
    x = torch.randn(4, 16)
    compiled(x).sum().backward()
    with minicompile.profile(str(tmp_path / "trace.json")):
        compiled(x).sum().backward()
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    expected = {"blocks.0.norm / layer_norm_kernel", "blocks.1.up / addmm 4x64x16"}
    assert expected <= names and any(str(name).endswith("(backward)") for name in names)
    torch.testing.assert_close(compiled(x), model(x))


def test_a_comparison_has_a_column_for_every_compiler() -> None:
    def failing(function):
        raise RuntimeError("no compiler here")

    compilers = {"eager": lambda f: f, "other": failing, "minicompile": minicompile.api.report_tools({}).compile}
    torch.manual_seed(0)
    x = torch.randn(64, 32)

    def graphs(made):
        return made.compiler.graphs if hasattr(made, "compiler") else None

    found = compare(lambda x: (x * 2).softmax(-1), (x,), {}, compilers, graphs)
    eager, other, ours = found.columns
    assert eager.kernels == 2 and eager.bytes_moved == 4 * x.nbytes and eager.compile_seconds is None
    assert ours.kernels == 1 and ours.bytes_moved == 2 * x.nbytes and ours.compile_seconds > 0
    assert ours.worst_ulp < 8 and "no compiler here" in other.failure
    assert "other failed" in str(found) and json.loads(found.to_json())["columns"][2]["kernels"] == 1


def test_the_command_explains_a_function_with_the_inputs_beside_it(tmp_path: pathlib.Path, capsys) -> None:
    page, data = tmp_path / "report.html", tmp_path / "report.json"
    assert cli.main(["explain", "tests.report.programs:model", "--html", str(page), "--json", str(data)]) == 0
    printed = capsys.readouterr().out
    assert "Model on" in printed and "-- Kernels" in printed
    assert page.read_text().startswith("<!doctype html>") and json.loads(data.read_text())["function"] == "Model"


def test_the_command_takes_inputs_as_expressions(capsys) -> None:
    inputs = ["--input", "randn(4, 16)", "--input", "ones(16)"]
    assert cli.main(["explain", "tests.report.programs:norm", *inputs]) == 0
    assert "norm on" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="names no function"):
        cli.main(["explain", "tests.report.programs"])


@pytest.mark.parametrize(("arguments", "said"), [
    (["nothing_here:f"], "no module 'nothing_here'"), (["tests.report.programs:nothing"], "no attribute 'nothing'"),
    (["tests.report.programs:Model"], "no function or nn.Module object"), (["nothing_here.py"], "no file nothing_here.py"),
    (["tests.report.programs:norm", "--input", "randn("], "SyntaxError"),
])  # fmt: skip
def test_the_command_says_what_is_wrong_without_a_traceback(arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        cli.main(["explain", *arguments])


def test_the_command_explains_every_function_that_a_script_compiles(tmp_path: pathlib.Path, capsys) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, minicompile\n"
        "double = minicompile.compile(lambda x: x * 2)\n"
        "model = minicompile.compile(torch.nn.Linear(4, 4))\n"
        "print('rows', sys.argv[1])\n"
        "for rows in (1, 2):\n"
        "    model(double(torch.randn(rows, 4)))\n"
    )
    assert cli.main(["explain", str(script), "7"]) == 0
    printed = capsys.readouterr().out
    assert "rows 7" in printed and "<lambda> on" in printed and "Linear.forward on" in printed
    script.write_text(script.read_text() + "print(sys.argv[1:])\nsys.exit(3)\n")
    assert cli.main(["explain", str(script), "7", "--steps", "2"]) == 3
    printed = capsys.readouterr().out
    assert "['7', '--steps', '2']" in printed and "<lambda> on" in printed
    script.write_text(script.read_text().replace("sys.exit(3)", "raise KeyError('data')"))
    assert cli.main(["explain", str(script), "--", "7"]) == 1
    captured = capsys.readouterr()
    assert "<lambda> on" in captured.out and captured.err.count("File ") == 1 and "KeyError: 'data'" in captured.err
    script.write_text("print('nothing')\n")
    assert cli.main(["explain", str(script)]) == 1
