"""Hand-written kernels compiled by workers: the same code under the same name, and never needed."""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from minicompile.graph.attention import calls_alone
from minicompile.kernels import interpret
from minicompile.kernels.cache_keys import settle
from minicompile.runtime import library_kernels, worker_pool
from minicompile.runtime.kernel_worker import filed, library_of
from minicompile.runtime.worker_pool import WorkerPool
from tests.kernels.machine_code import Launch, machine_code

MODULES = ("flash_attention_forward", "flash_attention_backward", "flash_attention_gluon", "flash_attention_gluon_backward",
           "halves", "mask_bounds", "flash_decode", "matmul")  # fmt: skip
HALVES: Any = importlib.import_module("minicompile.kernels.halves")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    monkeypatch.setenv("MINICOMPILE_WORKERS", "1")
    made = WorkerPool()
    monkeypatch.setattr(library_kernels, "POOL", made)
    made.prepare(100)
    with made._changed:
        assert made._changed.wait_for(lambda: not made._starting, 60)
    yield made
    made.end()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> list[bool]:
    """Whether Triton's folder had the kernel, each time that one was compiled here, after a worker was asked."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    had: list[bool] = []
    compile_here = triton.compile

    def compile(source: Any, target: Any, options: dict[str, Any]) -> Any:
        parsed = triton.compiler.compiler.make_backend(target).parse_options(options).__dict__

        def here(*args: Any, **rest: Any) -> Any:
            had.append(library_kernels.is_filed(source, target, parsed))
            return compile_here(*args, **rest)

        return library_kernels.compiled(here, source, target, parsed)

    monkeypatch.setattr(triton, "compile", compile)
    return had


def launch_of_halves(low: bool) -> Launch:
    seen: list[Launch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HALVES, "launch", lambda kernel, grid, *args, **meta: seen.append(Launch(kernel, args, meta)))
        HALVES.halved(32, low, torch.empty(1, 2, 128, 32))
    return seen[1]


@pytest.mark.parametrize("module", MODULES)
def test_a_worker_reads_the_kernels_that_this_process_has(module: str) -> None:
    real = importlib.import_module(f"minicompile.kernels.{module}")
    read = library_of(str(real.__file__))
    kernels = {name: value.cache_key for name, value in vars(real).items() if hasattr(value, "cache_key")}
    assert kernels and kernels == {name: value.cache_key for name, value in read.items() if hasattr(value, "cache_key")}
    assert "torch" not in read


def test_a_child_of_a_fork_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    waiting = library_kernels.Waiting()
    waiting.__enter__()
    waiting._lock.acquire()
    waiting.forget()
    with waiting:
        assert waiting._count == 1


CALLING = '''
import triton
import triton.language as tl

FACTOR: tl.constexpr = tl.constexpr(3)


@triton.jit
def scaled(x):
    return x * FACTOR


@triton.jit
def scaled_twice(x):
    return scaled(scaled(x)) + tl.max(x, 0)


@triton.jit
def kernel(x_ptr):
    tl.store(x_ptr, scaled_twice(tl.load(x_ptr + tl.arange(0, 4))))
'''


def test_the_name_of_a_kernel_does_not_depend_on_what_was_named_before(tmp_path: pathlib.Path) -> None:
    """As Triton 3.6 computes it alone: a constant that only a called function reads counts where that was named before."""
    path = tmp_path / "calling.py"
    path.write_text(CALLING)
    names = set()
    for first in ([], ["scaled"], ["scaled_twice", "scaled"], ["kernel"]):
        scope = library_of.__wrapped__(str(path))
        for name in first:
            settle(scope[name])
        settle(scope["kernel"])
        names.add(scope["kernel"].cache_key)
        assert all(scope[name].hash is not None for name in ("scaled", "scaled_twice"))
    assert len(names) == 1


def test_triton_finds_what_a_worker_has_compiled(pool: WorkerPool, asked: list[bool]) -> None:
    settle(HALVES.halves_kernel)
    first = machine_code(launch_of_halves(True))
    assert asked == [True] and first.registers > 0
    machine_code(launch_of_halves(True))
    pool.end()
    machine_code(launch_of_halves(False))
    assert asked == [True, True, False]  # the second time without asking, the third without anybody to ask


def test_constants_that_need_torch_and_kernels_of_others_are_compiled_here() -> None:
    function = SimpleNamespace(fn=HALVES.halves_kernel.fn)
    target = SimpleNamespace(backend="cuda", arch=90, warp_size=32)

    def job(fn: Any, **constants: Any) -> Any:
        source = SimpleNamespace(fn=fn, signature={}, constants={(i,): v for i, v in enumerate(constants.values())}, attrs={})
        return library_kernels.library_job(source, target, {})

    assert job(function, width=32, when="held", pair=(1, None)) is not None
    assert job(function, dtype=torch.float32) is None and job(function, pair=(1, torch.float32)) is None
    assert job(SimpleNamespace(fn=test_a_worker_reads_the_kernels_that_this_process_has)) is None


def test_a_kernel_asks_once_it_was_told_to() -> None:
    calls: list[Any] = []
    kernel = SimpleNamespace(device_caches={3: ()}, compile=lambda *args, **kwargs: calls.append(args))
    for _ in range(2):
        library_kernels.ask_workers(kernel, 3)
    source = SimpleNamespace(fn=SimpleNamespace(fn=launch_of_halves))
    kernel.compile(source, target=None, options={})
    assert calls == [(source,)]


def test_what_a_worker_cannot_compile_is_compiled_here(pool: WorkerPool) -> None:
    job = library_kernels.LibraryJob("/nowhere.py", "kernel", ("cuda", 90, 32), {}, {}, {}, {}, "", "")
    with pytest.raises(FileNotFoundError):
        filed(job)
    assert pool.file(job, lambda: "here") == "here" and len(pool._idle) == 1


@pytest.mark.parametrize("goes_on", [True, False])
def test_kernels_are_prepared_together_before_any_is_compiled(goes_on: bool) -> None:
    order: list[str] = []

    class Kernel:
        hash = "its name"

        def warmup(self, *args: Any, **meta: Any) -> None:
            order.append("compiled")

    def call() -> None:
        for _ in range(2):
            interpret.launch(Kernel(), (1,), torch.empty(2, device="meta"))

    def prepare(kernels: list[Any], device: int) -> bool:
        order.append(f"{len(kernels)} for {device}")
        return goes_on

    interpret.compile_launches(call, torch.device("meta", 0), prepare)
    assert order == ["2 for 0", *["compiled"] * (2 * goes_on)]


def test_workers_help_where_kernels_are_many() -> None:
    few, many = ([SimpleNamespace(device_caches={0: ()}, compile=print) for _ in range(count)] for count in (3, 4))
    assert library_kernels.share_with_workers(few, 0) and not library_kernels.share_with_workers(few, 0, only_many=True)
    assert all(kernel.compile is print for kernel in few)
    assert library_kernels.share_with_workers(many, 0, only_many=True) and all(kernel.compile is not print for kernel in many)


def test_the_calls_of_attention_stand_alone_each_kind_once() -> None:
    graph = torch.fx.Graph()

    def tensor(name: str, rows: int) -> torch.fx.Node:
        node = graph.placeholder(name)
        node.meta["val"] = torch.empty(1, 2, rows, 16, device="meta")
        return node

    q, k, other = tensor("q", 8), tensor("k", 8), tensor("other", 4)
    for query in (q, k, other):
        node = graph.call_function(torch.ops.minicompile.attention.default, (query, k, k, None, None, 0.0, True, 0.25, 0))
        node.meta["val"] = (query.meta["val"], None)
    graph.output((node,))
    alone = calls_alone(torch.fx.GraphModule({}, graph))
    calls = [node for node in alone.graph.nodes if node.op == "call_function"]
    assert [call.args[0].meta["val"].shape[2] for call in calls] == [8, 4]
    assert {node.op for node in alone.graph.nodes} == {"placeholder", "call_function", "output"}
    assert all("val" in node.meta for node in alone.graph.nodes if node.op != "output")


def test_workers_are_started_for_attention() -> None:
    from minicompile.compiler import KERNELS_OF_ATTENTION, expected_kernels

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.softmax, (x, -1))
    graph.output((node,))
    for dtype, kernels in ((torch.bfloat16, 0), (torch.float32, KERNELS_OF_ATTENTION)):
        node.meta["example_value"] = torch.empty(4, 4, device="meta", dtype=dtype)
        assert expected_kernels(torch.fx.GraphModule({}, graph)) == kernels
    node.meta["example_value"] = torch.empty(4, 4)
    assert expected_kernels(torch.fx.GraphModule({}, graph)) == 0
    assert KERNELS_OF_ATTENTION // worker_pool.KERNELS_A_WORKER == 8
