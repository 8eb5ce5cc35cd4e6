"""`minicompile.explain` says what was done: every record is there, typed, printable, and true."""

from __future__ import annotations

import json

import pytest
import torch

import minicompile
from minicompile.report import collect, document, text_page
from tests.report import programs


@pytest.fixture(scope="module")
def explained() -> minicompile.Explanation:
    return minicompile.explain(programs.norm)(torch.randn(8, 16, requires_grad=True), torch.randn(16))


def test_every_kernel_has_its_lines_bytes_operations_and_source(explained) -> None:
    forward = next(step for step in explained.steps if step.half == "forward")
    assert forward.kind == "kernel" and "@triton.jit" in forward.source
    assert {"pow", "mean", "rsqrt", "mul", "relu"} <= set(forward.operators)
    assert any("scale = torch.rsqrt" in line.text for line in forward.lines)
    x, weight = 8 * 16 * 4, 16 * 4
    assert forward.bytes_read == x + weight and forward.bytes_written >= x
    assert forward.flops > 8 * 16 * 4


def test_what_is_saved_and_recomputed_is_counted(explained) -> None:
    assert {step.half for step in explained.steps} == {"forward", "backward"}
    assert sum(entry.num_bytes for entry in explained.saved) > 0
    assert all(entry.reason for entry in (*explained.saved, *explained.recomputed))


def test_guards_have_a_cost_and_a_line(explained) -> None:
    tensors = [guard for guard in explained.guards if "is a torch.float32 tensor" in guard.sentence]
    assert len(tensors) == 2 and all(guard.nanoseconds > 0 for guard in tensors)
    assert "norm" in str(tensors[0].location) and explained.guards_ns > 0


def test_the_page_fits_a_terminal(explained, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = str(explained).splitlines()
        assert max(map(len, lines)) <= columns
        text = "\n".join(lines)
        for title in ("Capture", "Guards", "Kernels", "Fusion", "Memory", "Accuracy"):
            assert f"-- {title}" in text


def test_everything_is_data(explained) -> None:
    data = json.loads(explained.to_json())
    assert data["steps"][0]["bytes_read"] == explained.steps[0].bytes_read
    assert data["verdict"]["bound"] and data["break_even"]["compile_seconds"] > 0


def test_without_a_gpu_the_times_are_said_to_be_the_interpreters(explained) -> None:
    if not torch.cuda.is_available():
        assert "Triton's interpreter" in explained.notes[0] and not explained.roofs.measured
        assert all(step.registers is None for step in explained.steps)


def test_explaining_leaves_arguments_modules_and_random_state_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    x = torch.randn(8, 4)
    before = (x.clone(), {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state())
    minicompile.explain(lambda model, x: model(x.mul_(2)) + torch.rand(4))(model, x)
    assert torch.equal(x, before[0]) and torch.equal(torch.get_rng_state(), before[2])
    assert all(torch.equal(value, before[1][name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_steps_know_the_users_module() -> None:
    explained = minicompile.explain(programs.model)(torch.randn(4, 16))
    modules = {step.module for step in explained.steps}
    assert {"blocks.0.norm", "blocks.0.up", "blocks.1.down"} <= modules
    assert any(step.matmul is not None for step in explained.steps)


@pytest.mark.parametrize(
    ("function", "added"),
    [
        (programs.printing, "if not torch.compiler.is_compiling():"),
        (programs.branching, "y = torch.where(x.sum() > 0, x * 2, x - 1)"),
        (programs.returning, "return torch.where(x.sum() > 0, x * 2, x - 1)"),
        (programs.item, "total = x.sum()"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mechanical_rewrite_is_a_patch_that_was_tried(function, added: str) -> None:
    (found,) = minicompile.explain(function)(torch.rand(4, 4)).breaks
    assert found.patch is not None and found.patch.verified, found
    assert f"+    {added}" in found.patch.diff and found.location.file.endswith("programs.py")


def test_a_rewrite_that_does_not_work_is_not_offered() -> None:
    explained = minicompile.explain(programs.hidden_item)(torch.full((4,), 0.5))
    assert explained.breaks and not any(found.patch and found.patch.verified for found in explained.breaks)
    assert "What to do" in str(explained) and "Captured again" not in str(explained)


def test_a_statement_that_shares_its_line_has_no_patch() -> None:
    explained = minicompile.explain(programs.one_line)(torch.rand(4, 4))
    assert explained.breaks and all(record.patch is None and record.hint for record in explained.breaks)


def test_the_patched_function_is_as_it_was_afterwards() -> None:
    code = programs.branching.__code__
    minicompile.explain(programs.branching)(torch.rand(4, 4))
    assert programs.branching.__code__ is code


def test_recompiles_of_a_compiled_function_come_with_the_annotation_that_avoids_them() -> None:
    compiled = minicompile.compile(programs.norm, dynamic=False)
    for rows in (4, 6):
        compiled(torch.randn(rows, 16), torch.randn(16))
    (found,) = minicompile.explain(compiled)(torch.randn(8, 16), torch.randn(16)).recompiles
    assert "mark_dynamic(x, 0)" in found.annotation and "(4, 16)" in found.what and "(6, 16)" in found.what


def changing(x, *rest, items=(), name="a"):
    for item in items:
        x = x + item
    return x.sum() if name == "a" else x * 2


def test_every_recompile_says_what_was_and_is_and_what_avoids_it() -> None:
    compiled, x = minicompile.compile(changing), torch.randn(4, 3)
    for call in (lambda: compiled(x), lambda: compiled(x, 1), lambda: compiled(x, items=[x]), lambda: compiled(x, items=[x] * 3),
                 lambda: compiled(x, name="b"), lambda: compiled(x.clone().requires_grad_(), name="b"),
                 lambda: compiled(2.0, name="b"), lambda: compiled(True, name="b")):  # fmt: skip
        call()
    found = [(record.what, record.annotation) for record in map(collect.explained_recompile, compiled.recompiles)]
    for (what, annotation), (said, avoided) in zip(found, [
        ("was 1, is 2", "same arguments"), ("was 2, is 1", "same arguments"), ("was 1, is 3", "as one tensor"),
        ("was ['items'], is ['name']", "same arguments"), ("cpu, is torch.float32 (4, 3) on cpu, requires grad", "requires_grad"), ("is 2.0", "0-d tensor"), ("is True", "0-d tensor"),
    ], strict=True):  # fmt: skip
        assert said in what and avoided in annotation


def test_a_size_that_the_program_asks_about_is_told_with_its_line() -> None:
    def stacked(x):
        return sum(x[row] * row for row in range(x.shape[0])) if x.shape[1] < 100 else x

    compiled = minicompile.compile(stacked)
    for size in ((3, 4), (4, 5), (5, 6), (5, 200)):
        compiled(torch.randn(size))
    _, loop, branch = (collect.explained_recompile(record) for record in compiled.recompiles)
    line = stacked.__code__.co_firstlineno + 1
    assert f"`x.shape[0] == 4` (needed at {__file__}:{line}" in loop.what and "was 4, is 5" in loop.what
    assert f"`x.shape[1] < 100` (needed at {__file__}:{line}" in branch.what and "asks for this there" in branch.annotation


def test_operations_of_convolutions_and_attention() -> None:
    def both(x, weight):
        y = torch.nn.functional.conv2d(x, weight, padding=1)
        return torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)

    steps = minicompile.explain(both)(torch.randn(2, 3, 8, 16, requires_grad=True), torch.randn(4, 3, 3, 3)).steps
    flops = {step.name: step.flops for step in steps if step.kind == "extern"}
    forward, scores = 2 * (2 * 4 * 8 * 16) * (3 * 9), 2 * (2 * 4 * 8 * 8 * 16) // 2
    assert flops == {"convolution": forward, "convolution_backward": forward,
                     "attention": 2 * scores, "attention_backward": 5 * scores}  # fmt: skip


def test_the_ledger_speaks_of_the_users_lines() -> None:
    found = minicompile.explain(programs.Model())(torch.randn(4, 16)).fusions
    apart = [entry for entry in found if entry.verdict != "fused"]
    assert apart and all(" at programs.py:" in entry.what and entry.between for entry in apart if "layer_norm" in entry.what)


def test_cells_are_wrapped_and_columns_that_say_nothing_left_out() -> None:
    table = document.Table(("what", "none", "why"), [("one two three " * 5, "-", "a long reason " * 4), ("b", "", "c")])
    lines = list(text_page.table_lines(table, 40))
    assert "none" not in lines[0] and max(map(len, lines)) <= 40 and len(lines) > 3 and "…" in "".join(lines)


def test_tables_are_sorted_by_numbers_and_show_units() -> None:
    assert str(document.amount(123_456)) == "123 kB" and document.amount(123_456).value == 123_456
    assert str(document.duration(0.5)) == "0.5 µs" and str(document.duration(2_500_000)) == "2.5 s"
    assert str(document.duration(None)) == "-"


def test_random_numbers_are_not_judged() -> None:
    explained = minicompile.explain(lambda x: torch.dropout(x, 0.5, True))(torch.ones(64))
    assert not explained.accuracy.outputs and "random" in explained.accuracy.note


def test_guards_behind_a_graph_break_have_a_cost_too() -> None:
    scale = [2.0]

    def noisy(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print(end="")
        return y * scale[0]

    found = minicompile.explain(noisy)(torch.randn(4))
    behind = [guard for guard in found.guards if guard.location and guard.location.line == noisy.__code__.co_firstlineno + 3]
    assert behind and all(guard.nanoseconds is not None for guard in found.guards), found.guards
