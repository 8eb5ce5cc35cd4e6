"""A whole compiled graph comes back from the disk exactly when everything that made it is the same."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch.utils._sympy.functions import FloorDiv, Max

import minicompile
from minicompile import compiler as pipeline
from minicompile.runtime import graph_key
from minicompile.runtime.code_cache import CodeCache
from minicompile.runtime.graph_store import StoredGraph, decoded, encoded
from minicompile.scheduling import tiling

SIZE = sympy.Symbol("s1", integer=True, positive=True)


@pytest.fixture(autouse=True)
def unchanging_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever edits the library while the tests run changes nothing for them."""
    monkeypatch.setattr(graph_key, "library_version", lambda: "one version")


class Stages:
    """Counts how often the graph stage runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = 0
        build = pipeline.build_graph

        def counted(*arguments: Any) -> Any:
            self.runs += 1
            return build(*arguments)

        monkeypatch.setattr(pipeline, "build_graph", counted)


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    return Stages(monkeypatch)


def compiled(function: Callable[..., Any], folder: pathlib.Path, **options: Any) -> Any:
    settings = {"cache_directory": folder, "verify": False, "dump_directory": None, "suppress_errors": False, **options}
    return minicompile.compile(function, options=settings)


def block(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.linear(x, weight, bias), (8,)).relu().transpose(0, 1)


def arguments(gradient: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(shape, requires_grad=gradient) for shape in ((5, 8), (8, 8), (8,))]


def test_inference_skips_the_stages_the_second_time(tmp_path: pathlib.Path, stages: Stages) -> None:
    given = arguments()
    for _ in range(3):
        again = compiled(block, tmp_path)
        torch.testing.assert_close(again(*given), block(*given))
        assert minicompile.stats(again).kernels > 0 and minicompile.sources(again)
    assert stages.runs == 1


def test_a_function_of_torch_that_is_made_of_two_has_a_name(tmp_path: pathlib.Path, stages: Stages) -> None:
    x = torch.randn(1, 2, 6, 6)
    for pool in (F.max_pool2d, F.adaptive_max_pool2d):
        for _ in range(2):
            torch.testing.assert_close(compiled(lambda x, pool=pool: pool(x, 2) + 1, tmp_path)(x), pool(x, 2) + 1)
    assert stages.runs == 2


def test_training_skips_the_stages_once_the_backward_was_compiled(tmp_path: pathlib.Path, stages: Stages) -> None:
    for run in range(3):
        given, expected = arguments(True), arguments(True)
        result = compiled(block, tmp_path)(*given)
        if run > 0:  # the first process stops before the backward: nothing may be kept
            result.sum().backward()
            block(*expected).sum().backward()
            for ours, eager in zip(given, expected, strict=True):
                torch.testing.assert_close(ours.grad, eager.grad, rtol=1e-4, atol=1e-4)
    assert stages.runs == 2


def test_a_stored_forward_serves_backwards_from_other_results(tmp_path: pathlib.Path, stages: Stages) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * x).sum(), x.sqrt()

    for chosen, expected, runs in (((0,), [0, 2], 1), ((0,), [0, 2], 1), ((0, 1), [torch.inf, 2.5], 2), ((0,), [0, 2], 2)):
        x = torch.tensor([0.0, 1.0], requires_grad=True)
        results = compiled(program, tmp_path)(x)
        sum(results[number].sum() for number in chosen).backward()
        assert x.grad is not None and x.grad.tolist() == expected and stages.runs == runs


def test_views_mutations_and_constants_come_back(tmp_path: pathlib.Path, stages: Stages) -> None:
    def program(x: torch.Tensor, table: torch.Tensor) -> tuple[Any, ...]:
        table.mul_(2)
        y = x + torch.tensor([1.0, 2.0, 3.0])
        return y.view(3, 1), y[1:], x, table[0], None, 3, y

    for _ in range(2):
        x, table, plain_table = torch.ones(3), torch.ones(4), torch.ones(4)
        ours, eager = compiled(program, tmp_path)(x, table), program(x, plain_table)
        assert ours[2] is x and ours[4:6] == (None, 3)
        assert ours[0]._base is not None and torch.equal(table, plain_table)
        for one, other in zip(ours, eager, strict=True):
            if isinstance(one, torch.Tensor):
                torch.testing.assert_close(one, other)
    assert stages.runs == 1


def test_a_row_of_a_parameter_written_without_gradients_is_part_of_the_graph(tmp_path: pathlib.Path, stages: Stages) -> None:
    def limited(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weight[0].fill_(0.25)
            weight.clamp_(-0.5, 0.5)
        return x @ weight

    for _ in range(2):
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
        compiled(limited, tmp_path)(torch.ones(2, 3)).sum().backward()
        torch.testing.assert_close(weight.detach()[0], torch.full((4,), 0.25))
        torch.testing.assert_close(weight.grad, torch.full((3, 4), 2.0))
    assert stages.runs == 1


def test_dropout_is_seeded_by_the_run_not_by_the_entry(tmp_path: pathlib.Path) -> None:
    x = torch.ones(4096)
    torch.manual_seed(3)
    draws = [compiled(lambda x: F.dropout(x, 0.5), tmp_path)(x) for _ in range(3)]
    assert not torch.equal(draws[0], draws[1]) and not torch.equal(draws[1], draws[2])


def base(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (x * 2 + y).sum(0)


def different_code(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (x * 2.5 + y).sum(0)


CALLS: dict[str, Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any], Any]]] = {
    "another constant": lambda: (different_code, (torch.ones(4, 4), torch.ones(4, 4)), {}, None),
    "another size": lambda: (base, (torch.ones(5, 4), torch.ones(5, 4)), {}, None),
    "other strides": lambda: (base, (torch.ones(4, 4).t(), torch.ones(4, 8)[:, ::2]), {}, None),
    "another dtype": lambda: (base, (torch.ones(4, 4, dtype=torch.float64), torch.ones(4, 4)), {}, None),
    "a gradient": lambda: (base, (torch.ones(4, 4, requires_grad=True), torch.ones(4, 4)), {}, None),
    "broadcast": lambda: (base, (torch.ones(4, 4), torch.ones(4, 1).expand(4, 4)), {}, None),
    "one tensor twice": lambda: (base, (torch.ones(4, 4),) * 2, {}, None),
    "a setting": lambda: (base, (torch.ones(4, 4), torch.ones(4, 4)), {"emulate_precision_casts": True}, None),
    "deterministic": lambda: (base, (torch.ones(4, 4), torch.ones(4, 4)), {}, deterministic()),
    "another default dtype": lambda: (base, (torch.ones(4, 4).float(), torch.ones(4, 4).float()), {}, default_dtype()),
    "autocast": lambda: (base, (torch.ones(4, 4), torch.ones(4, 4)), {}, torch.autocast("cpu")),
    "tf32": lambda: (base, (torch.ones(4, 4), torch.ones(4, 4)), {}, matmul_precision()),
}


@contextlib.contextmanager
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def default_dtype() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def matmul_precision() -> Any:
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", CALLS)
def test_what_differs_is_not_found(name: str, tmp_path: pathlib.Path, stages: Stages) -> None:
    compiled(base, tmp_path)(torch.ones(4, 4), torch.ones(4, 4))
    function, given, options, context = CALLS[name]()
    with context or contextlib.nullcontext():
        result = compiled(function, tmp_path, **options)(*given)
        torch.testing.assert_close(result, function(*given))
    assert stages.runs == 2
    if name != "tf32":  # torch's other flags follow that one, and do not all come back
        compiled(base, tmp_path)(torch.ones(4, 4), torch.ones(4, 4))
        assert stages.runs == 2


@pytest.mark.parametrize("part", ["library_version", "versions"])
def test_other_versions_find_nothing(
    part: str, tmp_path: pathlib.Path, stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = torch.ones(4, 4), torch.ones(4, 4)
    compiled(base, tmp_path)(*given)
    monkeypatch.setattr(graph_key, part, lambda: "another")
    compiled(base, tmp_path)(*given)
    assert stages.runs == 2


def test_a_changed_source_file_of_the_library_ends_the_caching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(graph_key, "_IMPORTED", 0.0)
    with pytest.raises(graph_key.NotKeyed):
        graph_key.library_version()


def halves(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Stages assume of it that the first size is even."""
    return (x.softmax(-1) * x.shape[0]).view(x.shape[0] // 2, 2, -1).sum(0) * scale


def test_graphs_of_sizes_that_vary_come_back_with_what_they_assume(
    tmp_path: pathlib.Path, stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiling, "ROW_REGISTERS", 128)
    for runs in (2, 3, 4):  # from the disk, the program for rows far longer than those seen first is made in every process
        function = compiled(halves, tmp_path)
        for rows, columns in ((4, 6), (8, 9), (12, 5), (10, 90)):
            given, expected = ([torch.rand(rows, columns), torch.ones(columns, requires_grad=True)] for _ in range(2))
            expected[0] = given[0]
            for program, (x, scale) in ((function, given), (halves, expected)):
                program(x, scale).sum().backward()
            torch.testing.assert_close(given[1].grad, expected[1].grad)
        assert stages.runs == runs
    with pytest.raises(RuntimeError, match="is invalid for input of size"):
        function(torch.ones(5, 7), torch.ones(7))


def test_other_sizes_between_the_same_powers_of_two_find_a_graph(tmp_path: pathlib.Path, stages: Stages) -> None:
    for sizes, runs in ((((4, 6), (8, 9)), 2), (((4, 6), (6, 12), (8, 3)), 2), (((4, 6), (10, 12)), 3)):
        function = compiled(halves, tmp_path)
        for rows, columns in sizes:
            given = torch.rand(rows, columns), torch.rand(columns)
            torch.testing.assert_close(function(*given), halves(*given))
        assert stages.runs == runs
    function = compiled(halves, tmp_path)
    function(torch.ones(4, 6), torch.ones(6))
    with pytest.raises(RuntimeError, match="is invalid for input of size"):
        function(torch.ones(7, 11), torch.ones(11))
    function(torch.ones(6, 12), torch.ones(12))


def test_a_float_that_varies_comes_back(tmp_path: pathlib.Path, stages: Stages) -> None:
    for _ in range(2):
        function = compiled(lambda x, factor: x.sin() * factor, tmp_path)
        for factor in (0.5, 0.25, 3.0):
            x = torch.ones(4)
            torch.testing.assert_close(function(x, factor), x.sin() * factor)
    assert stages.runs == 2


def test_a_patched_function_of_torch_is_not_taken_for_torchs(
    tmp_path: pathlib.Path, stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(graph_key.NotKeyed):
        graph_key.function_name(base)
    for function in (torch.add, torch.sin, F.gelu, F.linear, F.layer_norm, torch.ops.aten.view.default, pow):
        assert graph_key.named_function(graph_key.function_name(function)) is function
    imitation = functools.wraps(F.layer_norm)(base)
    monkeypatch.setattr(F, "layer_norm", imitation)
    with pytest.raises(graph_key.NotKeyed):
        graph_key.function_name(imitation)


@pytest.mark.parametrize("damage", ["truncated", "foreign", "another record", "not JSON", "unknown kind"])
def test_a_damaged_entry_is_compiled_anew(damage: str, tmp_path: pathlib.Path, stages: Stages) -> None:
    given = torch.ones(4, 4), torch.ones(4, 4)
    compiled(base, tmp_path)(*given)
    (entry,) = [path for path in (tmp_path / "graphs").rglob("*") if path.is_file()]
    cache = CodeCache(tmp_path)
    content = cache.read("graphs", entry.name) or b""
    assert StoredGraph.from_bytes(content) is not None
    if damage == "truncated":
        entry.write_bytes(entry.read_bytes()[:-9])
    else:
        new = {
            "foreign": content[:-1],
            "another record": b'{"tuple":[1]}',
            "not JSON": b"\x80\x04.",
            "unknown kind": content.replace(b'"Binding"', b'"os.system"'),
        }[damage]
        cache.write("graphs", entry.name, new)
    torch.testing.assert_close(compiled(base, tmp_path)(*given), base(*given))
    assert stages.runs == 2


def test_values_survive_the_way_to_the_disk_and_back() -> None:
    values = (
        1, -0.0, True, None, "text", (1, (2.5, "x")), [1, 2], {"a": (1,)}, torch.float16, torch.device("cuda", 1),
        torch.ops.aten.view.default, torch.channels_last, float("inf"), sympy.Eq(FloorDiv(SIZE * 3 + 1, 2), Max(SIZE, 4)),
    )  # fmt: skip
    again = decoded(encoded(values))
    assert repr(again) == repr(values) and again[-1] == values[-1]
    for constant in (torch.tensor(3.5), torch.arange(6).view(2, 3), torch.ones(2, dtype=torch.bfloat16), torch.ones(0, 3)):
        assert torch.equal(decoded(encoded(constant)), constant)
    for hostile in (torch.ones(2, 2).t(), object(), slice(1), torch.ones(3, requires_grad=True), sympy.Rational(1, 2) * SIZE):
        with pytest.raises(graph_key.NotKeyed):
            encoded(hostile)
    with pytest.raises(ValueError, match="sympify"):
        decoded({"expression": ["sympify", 1]})


def test_a_backward_compiled_under_other_flags_is_not_kept(tmp_path: pathlib.Path, stages: Stages) -> None:
    for _ in range(2):
        result = compiled(block, tmp_path)(*arguments(True))
        with deterministic(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result.sum().backward()
    assert stages.runs == 2


def test_connected_outputs_come_back_connected(tmp_path: pathlib.Path, stages: Stages) -> None:
    def both(x: torch.Tensor, w: torch.Tensor) -> Any:
        h = (x @ w).tanh()
        return h, h.square().sum()

    for _ in range(3):
        x, w = torch.ones(2, 3), torch.ones(3, 3, requires_grad=True)
        h, loss = compiled(both, tmp_path)(x, w)
        loss.backward(retain_graph=True)
        watched = torch.autograd.grad(loss, [h])[0] if stages.runs > 1 else None
        assert watched is None or torch.equal(watched, 2 * h.detach())
