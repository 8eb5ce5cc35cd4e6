"""Sizes that vary from call to call: eager's results, few compiles, guards and complaints in the user's words."""

from __future__ import annotations

import collections
import copy
import itertools
import linecache
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._higher_order_ops.associative_scan import associative_scan
from torch.utils._pytree import tree_leaves
from triton.backends.compiler import GPUTarget

import minicompile
from minicompile.codegen import group_values
from minicompile.codegen.generate import generate_program
from minicompile.compiler import eager_call
from minicompile.config import Config
from minicompile.errors import Unsupported
from minicompile.ir.graph import GraphModule
from minicompile.ir.loops import LoweredGraph
from minicompile.ir.schedule import DeviceProperties
from minicompile.runtime.kernel_binary import compile_kernel, for_sizes
from minicompile.scheduling import tiling
from minicompile.scheduling.schedule import schedule_graph
from tests.capture.support import capture
from tests.differential import check
from tests.end_to_end import index_programs
from tests.end_to_end.dynamic_programs import PROGRAMS, DynamicProgram

STRICT = {"suppress_errors": False, "cache": False}


def compiles(compiled: Any) -> int:
    """How often the frame that was compiled most often was compiled."""
    return 1 + max(collections.Counter(each.function for each in compiled.records.recompiles).values(), default=0)


def close(left: Any, right: Any) -> None:
    """Require equal results, tensors up to rounding."""
    if isinstance(right, torch.Tensor):
        torch.testing.assert_close(left, right, rtol=2e-5, atol=2e-5, equal_nan=True)
    elif isinstance(right, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            close(one, other)
    else:
        assert left == right and type(left) is type(right)


def run(program: DynamicProgram, compiled: Any) -> None:
    """Call a program at all of its sizes beside eager, which also sees what changed in place."""
    for position, size in enumerate(program.sizes):
        torch.manual_seed(position)
        arguments = program.arguments(*size) if isinstance(size, tuple) else program.arguments(size)
        own = copy.deepcopy(arguments)
        close(compiled(*own), program.function(*arguments))
        close([each for each in own if isinstance(each, torch.Tensor)],
              [each for each in arguments if isinstance(each, torch.Tensor)])
    assert compiles(compiled) <= program.compiles, compiled.records.recompiles
    assert not compiled.records.fallbacks
    assert program.breaks or not compiled.records.graph_breaks


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_captured(name: str) -> None:
    run(PROGRAMS[name], capture(PROGRAMS[name].function))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_through_the_whole_compiler(name: str) -> None:
    run(PROGRAMS[name], minicompile.compile(PROGRAMS[name].function, options=STRICT))


class Block(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(20, 8), nn.Embedding(64, 8)
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of predicting `targets`."""
        b, t = ids.shape
        x = self.embedding(ids) + self.position(torch.arange(t))
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, 8)
        return F.cross_entropy(self.out(F.gelu(x)).flatten(0, 1), targets.flatten())


def test_training_on_thirty_lengths_compiles_twice() -> None:
    torch.manual_seed(0)
    model = Block()
    twin = copy.deepcopy(model)
    compiled = minicompile.compile(twin, options=STRICT)
    for length in [17, 9, *range(2, 30)]:
        ids, targets = torch.randint(0, 20, (2, 3, length)).unbind(0)
        losses = []
        for one, forward in ((model, model), (twin, compiled)):
            one.zero_grad()
            losses.append(forward(ids, targets))
            losses[-1].backward()
        close(losses[1], losses[0])
        close([p.grad for p in twin.parameters()], [p.grad for p in model.parameters()])
    assert compiles(minicompile.api.compiled_function(compiled)) <= 2


def test_a_scale_made_of_a_size_trains_without_compiling_again() -> None:
    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * math.sqrt(x.shape[0])) @ w

    compiled = minicompile.compile(scaled, dynamic=True, options=STRICT)
    for rows in (5, 7, 9):
        x, w = torch.randn(rows, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
        found, expected = (torch.autograd.grad(run(x, w).square().sum(), (x, w)) for run in (compiled, scaled))
        close(found, expected)
    assert compiles(compiled) == 1


def test_batches_of_1_to_64_compile_at_most_three_times() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3)).eval()
    compiled = minicompile.compile(model, options=STRICT)
    for batch in [*range(1, 9), 16, 31, 64, 1, 63]:
        x = torch.randn(batch, 6)
        close(compiled(x), model(x))
    assert compiles(minicompile.api.compiled_function(compiled)) <= 3


STEPS: dict[str, Any] = {
    "double": lambda x: x * 2 + 1,
    "transpose": lambda x: x.transpose(0, 1),
    "softmax": lambda x: x.softmax(-1) if x.shape[-1] else x,
    "total": lambda x: x + x.sum(0, keepdim=True),
    "mean": lambda x: x - x.mean(1, keepdim=True),
    "join": lambda x: torch.cat([x, x[:, : x.shape[1] // 2]], 1),
    "shift": lambda x: F.pad(x, (1, 0))[:, : x.shape[1]],
    "positions": lambda x: x + torch.arange(x.shape[1]) * x.shape[0],
    "square": lambda x: x @ x.t(),
    "fold": lambda x: x.reshape(-1, x.shape[0]),
    "flip": lambda x: x.flip(0, 1),
    "roll": lambda x: x.roll(1, 1),
    "mask": lambda x: x * (torch.arange(x.shape[0])[:, None] >= torch.arange(x.shape[1])),
    "outer": lambda x: (x[:, :, None] * x[:, None, :]).sum(1),
    "spread": lambda x: x[None].expand(2, -1, -1).reshape(-1, x.shape[1]),
    "half": lambda x: x[x.shape[0] // 2 :],
    "every_second": lambda x: x[:, ::2],
    "sum": lambda x: x.cumsum(0),
    "write": lambda x: x.clone().index_fill_(0, torch.tensor([0]), 3.0) if x.shape[0] else x,
    "tril": lambda x: x.tril(),
}
SIZES = st.sampled_from([0, 1, 2, 3, 5, 8, 16])


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5),
    st.lists(st.tuples(SIZES, SIZES), min_size=2, max_size=5),
    st.sampled_from([None, True]),
)
def test_random_programs_at_random_sizes(names: list[str], sizes: list[tuple[int, int]], dynamic: bool | None) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = STEPS[name](x)
        return x

    compiled = minicompile.compile(program, dynamic=dynamic, options={**STRICT, "recompile_limit": 64})
    for rows, columns in sizes:
        x = torch.randn(rows, columns)
        try:
            expected = program(x)
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(x)
            continue
        close(compiled(x), expected)


def test_true_compiles_once_and_false_compiles_each_size() -> None:
    for dynamic, expected in ((True, 1), (None, 2), (False, 4)):
        compiled = capture(lambda x, n: x.relu() * n, dynamic=dynamic)
        for size in (5, 7, 9, 4):
            x = torch.randn(size, 3)
            close(compiled(x, size), x.relu() * size)
        assert compiles(compiled) == expected


@pytest.mark.parametrize("program", [
    lambda x, y: (x * 2, y + 1), lambda x, y: (x.sum(0), y.sum(0)), lambda x, y: (x.sum(1), y * 3),
    lambda x, y: (x.t().contiguous() + 1, y * 2), lambda x, y: (x.cumsum(0) * 2 + 1, y.softmax(0)),
    lambda x, y: (x.sum(0), y.amax(1), x.cumsum(1) * x),
])  # fmt: skip
def test_kernels_do_not_tie_sizes_that_were_equal_when_they_were_made(program: Any) -> None:
    compiled = minicompile.compile(program, dynamic=True, options=STRICT)
    for rows, columns in ((6, 6), (7, 9), (90, 7), (12, 300)):
        x, y = torch.randn(rows, 6), torch.randn(columns, 6)
        close(compiled(x, y), program(x, y))
        close(compiled(x.t(), y.t()), program(x.t(), y.t()))


def test_sizes_far_from_the_hints_get_kernels_for_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "ROW_REGISTERS", 128)
    monkeypatch.setattr(group_values, "LARGEST_INT32", 1000)
    compiled = minicompile.compile(lambda x: x.softmax(-1) * 2, dynamic=True, options=STRICT)
    for columns in (8, 50, 70, 9, 4000):
        x = torch.randn(3, columns)
        close(compiled(x), x.softmax(-1) * 2)
    (text,) = minicompile.sources(compiled).values()
    assert "> 64:" in text and "> 1000 or" in text and "tl.int64" not in text


def test_equal_sizes_are_not_tied_to_each_other() -> None:
    compiled = capture(lambda x, y: (x * 2, y + 1))
    for rows, columns in ((4, 4), (6, 6), (7, 9), (12, 5)):
        compiled(torch.randn(rows, 3), torch.randn(columns, 3))
    assert compiles(compiled) == 2


def test_marks_are_honoured() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for mark in (minicompile.mark_dynamic, torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic):
        compiled = capture(double)
        for size in (5, 7, 9):
            x = torch.randn(size, 3)
            mark(x, 0)
            close(compiled(x), x * 2)
        assert compiles(compiled) == 1
    for mark in (minicompile.mark_static, torch._dynamo.mark_static):
        compiled = capture(double)
        for size in (5, 7, 9):
            x = torch.randn(size, 3)
            mark(x, 0)
            close(compiled(x), x * 2)
        assert compiles(compiled) == 3


def test_marks_have_bounds() -> None:
    compiled = capture(lambda x: x * 2 if x.shape[0] <= 64 else x)
    for size in (5, 64, 17):
        x = torch.randn(size, 3)
        minicompile.mark_dynamic(x, 0, min=2, max=64)
        compiled(x)
    assert compiles(compiled) == 1
    assert "A[0].size(0) <= 64" in compiled.records.sources[0] or "<= 64" in compiled.records.sources[0]
    with pytest.raises(ValueError, match="smallest"):
        minicompile.mark_dynamic(torch.randn(3), 0, min=5, max=4)


def test_a_marked_size_that_the_program_fixes_is_told() -> None:
    def fixed(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(4, 3)

    x = torch.randn(4, 3)
    minicompile.mark_dynamic(x, 0)
    with pytest.warns(UserWarning, match=r"`x.shape\[0\]` is marked as dynamic, but the program fixes it to 4 \(at .*test_dyn"):
        capture(fixed)(x)
    with pytest.raises(Unsupported, match="fixes it to 4"):
        capture(fixed, fullgraph=True)(x)


def test_guards_on_sizes_have_words_and_the_line_that_needs_them() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] <= 2048:
            x = x * 2
        return x.view(x.shape[0], x.shape[1] // 2, 2)

    compiled = capture(program)
    for size in (4, 6, 4096):
        compiled(torch.randn(2, size))
    (record,) = [each for each in compiled.records.recompiles if "2048" in each.sentence]
    assert record.sentence == "`x.shape[1] <= 2048`" and (record.old, record.new) == (6, 4096)
    assert record.location.line == program.__code__.co_firstlineno + 1
    conditions = [each.sentence for each in compiled.records.graphs[1].guards]
    assert "`x.shape[1] >= 2`" in conditions and any("// 2" in text or "% 2" in text for text in conditions)


def test_negative_numbers_share_one_variant() -> None:
    compiled = capture(lambda x, n: x[n:] * n)
    for number in (3, 5, 2, -3, -4, -2, 7):
        x = torch.randn(12, 2)
        close(compiled(x, number), x[number:] * number)
    assert compiles(compiled) == 3


@pytest.mark.parametrize("program", [
    lambda x, n: (n - x, x**n, n**x, torch.lerp(x, x * 2, n), torch.rsub(x, n), x.half() * (n * 700)),
    lambda x, n: x.long() ** n,
])
def test_numbers_that_vary_on_either_side_of_an_operator(program: Any) -> None:
    compiled = minicompile.compile(program, options=STRICT)
    x = torch.arange(5.0)
    for number in (3, 5, 4, 7):
        close(compiled(x, number), program(x, number))


def test_gradients_flow_through_views_of_varying_sizes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * x.shape[0]).sigmoid()

    compiled = minicompile.compile(program, options=STRICT)
    for size in (3, 5, 9, 4):
        leaf = torch.randn(20, 4, requires_grad=True)
        twin = leaf.detach().clone().requires_grad_()
        program(leaf[2:size + 2] * 1).sum().backward()
        compiled(twin[2:size + 2] * 1).sum().backward()
        program(leaf[:size].t()).sum().backward()
        compiled(twin[:size].t()).sum().backward()
        close(twin.grad, leaf.grad)
    assert compiles(compiled) <= 3


def test_powers_of_a_number_that_varies_lie_in_memory_as_in_eager() -> None:
    compiled = minicompile.compile(lambda x, n: n**x, options=STRICT)
    for number in (0.5, 1.5, 2.5):
        assert compiled(torch.randn(3, 6).t().requires_grad_(), number).stride() == (3, 1)


@pytest.mark.parametrize("program", [
    lambda x, n: F.normalize(x, n, 0), lambda x, n: torch.linalg.vector_norm(x, n, -1),
    lambda x, n: x.var(1, correction=n), lambda x, n: torch.std_mean(x, 1, correction=n)[0],
    lambda x, n: F.embedding(torch.tensor([0, 1, 3, 2, 1]), x, padding_idx=n - 2),
    lambda x, n: x.index_add(0, torch.tensor([2, 0]), x[:2], alpha=n),
    lambda x, n: torch.addmm(x[:, :4], x, x.t(), alpha=n, beta=n),
])
def test_numbers_that_vary_beside_sizes_that_do_not(program: Any) -> None:
    compiled = minicompile.compile(program, options=STRICT)
    for order in (2, 3, 5, 4):
        leaf = torch.randn(4, 6, dtype=torch.float64).requires_grad_()
        twin = leaf.detach().clone().requires_grad_()
        results = program(leaf, order), compiled(twin, order)
        close(results[1], results[0])
        gradients = [torch.autograd.grad(*pair, torch.ones_like(pair[0])) for pair in zip(results, (leaf, twin), strict=True)]
        close(*gradients)


def test_no_more_compiles_than_torch_compile() -> None:
    def forward(x: torch.Tensor, mask: torch.Tensor, n: int) -> torch.Tensor:
        t = x.shape[1]
        return (x.softmax(1) * mask[:, :, None])[:, : t // 2] + torch.arange(t // 2)[:, None] * n

    counts = []
    for kind in ("torch", "ours"):
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled: Any = torch.compile(forward, backend=counter) if kind == "torch" else capture(forward)
        for (batch, length), n in zip(itertools.product((2, 3, 5), (6, 9, 14)), range(2, 20), strict=False):
            compiled(torch.randn(batch, length, 4), torch.rand(batch, length), n)
        counts.append(counter.frame_count if kind == "torch" else compiles(compiled))
    assert counts[1] <= counts[0]


def test_a_failed_compile_with_varying_sizes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from minicompile.codegen import wrapper

    def refuse(*_: Any) -> Any:
        raise ValueError("no text")

    compiled = minicompile.compile(lambda x: x * 2, options={"cache": False})
    compiled(torch.randn(4))
    monkeypatch.setattr(wrapper, "size_symbols", lambda graph: refuse() if graph.size_inputs or any(
        size.constant is None for buffer in graph.buffers.values() for size in buffer.sizes) else set())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        close(compiled(torch.ones(6)), torch.full((6,), 2.0))
    assert any("no text" in str(each.message) for each in told)


@pytest.mark.parametrize("numbers", [(2, 3, 5, 0, 1), (2.5, 0.5, 0.0, 3.0)])
@pytest.mark.parametrize("program", [
    lambda x, n: x ** n, lambda x, n: torch.pow(x, 2 * n), lambda x, n: x.pow(exponent=n), lambda x, n: n ** x,
    lambda x, n: x.mean() ** n, lambda x, n: (1 - x.sigmoid()) ** n * x.sigmoid().log(),
])
def test_gradients_of_powers_that_vary(program: Any, numbers: tuple[Any, ...]) -> None:
    compiled = minicompile.compile(program, options=STRICT)
    for size, number in enumerate(numbers, start=4):
        leaf = (torch.rand(size) + 0.1).requires_grad_()
        twin = leaf.detach().clone().requires_grad_()
        program(leaf, number).sum().backward()
        result = compiled(twin, number)
        close(result, program(leaf, number))
        result.sum().backward()
        close(twin.grad, leaf.grad)
    assert compiles(compiled) <= 3


def test_a_call_that_eager_refuses_leaves_sizes_symbolic() -> None:
    def program(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return x.select_scatter(row, 0, 1) * x.shape[1]

    compiled = minicompile.compile(program, options={"cache": False})
    with pytest.warns(UserWarning, match="a part of another shape"):
        for size, length in ((8, 8), (9, 7), (10, 10), (11, 11), (12, 12), (13, 13)):
            x, row = torch.randn(3, size), torch.randn(length)
            if size != length:
                with pytest.raises(RuntimeError, match="expected src to have a size equal to the slice of self"):
                    compiled(x, row)
            else:
                close(compiled(x, row), program(x, row))
    assert compiles(compiled) <= 3


def test_an_integer_that_no_graph_takes_leaves_sizes_symbolic() -> None:
    def program(x: torch.Tensor, power: int) -> torch.Tensor:
        return (x * x.shape[0]).pow_(power)

    compiled = minicompile.compile(program, options={"cache": False})
    for size, power in ((4, 2), (5, 3), (6, 3), (7, 2), (8, 3), (9, 2), (10, 3)):
        leaf = torch.rand(size, requires_grad=True)
        twin = leaf.detach().clone().requires_grad_()
        program(leaf, power).sum().backward()
        compiled(twin, power).sum().backward()
        close(twin.grad, leaf.grad)
    assert compiles(compiled) <= 3 and not compiled.records.fallbacks


@pytest.mark.parametrize("implementation", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_generation_compiles_three_times(kind: str, implementation: str, count: int) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=256, bos_token_id=0,
                                         eos_token_id=None)
        model = transformers.GPT2LMHeadModel(config).eval()
    else:
        config = transformers.LlamaConfig(num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, hidden_size=16,
                                          intermediate_size=24, vocab_size=50, max_position_embeddings=256, bos_token_id=0,
                                          eos_token_id=None)
        model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 50, (2, 7))
    options: dict[str, Any] = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    if implementation == "static":
        options |= {"cache_implementation": "static", "disable_compile": True}
    expected = model.generate(ids, **options)
    model.forward = compiled = minicompile.compile(model.forward, options={"cache": False})
    assert torch.equal(model.generate(ids, **options), expected)
    assert compiles(compiled) <= 3 and not compiled.records.fallbacks, [str(each) for each in compiled.records.recompiles]


H200 = DeviceProperties(name="H200", kind="cuda")
FOR_A_GPU: dict[str, tuple[Any, tuple[int, ...], tuple[tuple[int, ...], ...]]] = {
    "pointwise": (lambda x: F.gelu(x) / x.shape[0], (40, 32), ((3, 5), (1000, 17))),
    "softmax": (lambda x: x.softmax(-1), (64, 48), ((3, 16), (5, 1000), (2, 4097))),
    "layer_norm": (lambda x: F.layer_norm(x, (64,)) * 2, (30, 64), ((3, 64), (999, 64))),
    "columns": (lambda x: x.softmax(0), (24, 32), ((3, 5), (90, 16))),
    "split": (lambda x: x.sum((0, 1)), (64, 512, 8), ((3, 7, 8), (2, 1000, 8), (100, 100, 8))),
    "split_maximum": (lambda x: (x * 2).amax(0), (32768, 8), ((3, 8), (65537, 8))),
    "scan": (lambda x: x.cumsum(1) * 2 + 1, (5, 30), ((5, 7), (3, 200))),
    "transpose": (lambda x: x.t().contiguous() + 1, (40, 50), ((3, 5), (70, 20))),
}


def lowered_with_varying_sizes(function: Any, shape: tuple[int, ...]) -> LoweredGraph:
    """The loops of a function whose first sizes vary; a size of 8 or 64 stays."""
    x = torch.randn(shape)
    for dim, size in enumerate(shape):
        (minicompile.mark_static if size in (8, 64) and dim else minicompile.mark_dynamic)(x, dim)
    compiled = minicompile.compile(function, options=STRICT)
    compiled(x)
    (graph,) = compiled.compiler.graphs
    return graph.parts["forward"].lowered


@pytest.mark.parametrize("any_size", [False, True])
@pytest.mark.parametrize("name", FOR_A_GPU)
def test_kernels_for_a_gpu_are_right_at_other_sizes(name: str, any_size: bool) -> None:
    function, shape, others = FOR_A_GPU[name]
    lowered = lowered_with_varying_sizes(function, shape)
    schedule = schedule_graph(lowered, Config(verify=True), H200, any_size=any_size)
    if name.startswith("split"):
        assert any(step.name and "partial" in step.writes[0] for step in schedule.steps)
    program = generate_program(schedule, Config(), H200, any_size=any_size)
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(compile(program.text, linecache_name(program.text), "exec"), namespace)
    for sizes in (shape, *others):
        x = torch.randn(sizes)
        inputs = [x if entry not in lowered.size_inputs else None for entry in lowered.inputs]
        symbols = {id(symbol): size for buffer in lowered.buffers.values() if buffer.role == "input"
                   for symbol, size in zip(buffer.sizes, sizes, strict=False)}  # fmt: skip
        inputs = [symbols.get(id(lowered.size_inputs[entry])) if value is None else value
                  for entry, value in zip(lowered.inputs, inputs, strict=True)]  # fmt: skip
        close(namespace["call"](inputs)[0], function(x))
    assert any_size or all(not argument.wide for kernel in program.kernels for argument in kernel.arguments)
    for kernel in program.kernels:
        for numbers in ((64,) * len(kernel.sizes), (100,) * len(kernel.sizes)):
            special = for_sizes(kernel, numbers)
            assert compile_kernel(special, namespace[kernel.name], GPUTarget("cuda", 90, 32), None).code


def linecache_name(text: str) -> str:
    """A file name under which Triton finds the source of what is executed."""
    name = f"<program {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return name


def test_attention_of_varying_lengths_calls_our_kernels() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    compiled = minicompile.compile(attend, options=STRICT)
    for batch, length in ((2, 16), (3, 33), (2, 70)):
        leaves = [torch.randn(batch, 2, length, 16, requires_grad=True) for _ in range(3)]
        ours, eager = compiled(*leaves), attend(*leaves)
        close(ours, eager)
        for mine, theirs in zip(*(torch.autograd.grad(out.sum(), leaves) for out in (ours, eager)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    texts = list(minicompile.sources(compiled).values())
    assert compiles(compiled) == 2 and all("torch.ops.minicompile.attention" in text for text in texts) and len(texts) == 4


def test_a_backward_knows_sizes_that_are_seen_only_in_products() -> None:
    def program(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        seen = table[: x.shape[0], : x.shape[1], : x.shape[2]]
        return torch.where(seen, x, 0.0).exp()

    compiled = minicompile.compile(program, dynamic=True, options=STRICT)
    for size, room in ((5, 7), (4, 9)):
        leaf = torch.randn(size, size + 1, 3, requires_grad=True)
        twin = leaf.detach().clone().requires_grad_()
        table = torch.rand(room, room + 1, room + 2) > 0.5
        program(leaf, table).sum().backward()
        compiled(twin, table).sum().backward()
        close(twin.grad, leaf.grad)
    assert compiles(compiled) == 1


def test_the_length_of_a_range_in_floats() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        n = x.shape[0]
        return [x.sum() * torch.arange(*bounds) for bounds in ((n - 1, -1, -1.0), (0, n, 0.5), (0.5, n, 2.0), (n, 0.25, -1.5))]

    compiled = minicompile.compile(program, dynamic=True, options=STRICT)
    for size in (5, 6, 9):
        x = torch.randn(size)
        for actual, expected in zip(compiled(x), program(x), strict=True):
            close(actual, expected)
    assert compiles(compiled) == 1


def test_the_gradient_of_an_expanded_output() -> None:
    def program(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scale.exp().expand_as(x), x * 2

    compiled = minicompile.compile(program, dynamic=True, options=STRICT)
    for size in (5, 6):
        x, scale = torch.randn(size, 3), torch.randn(3, requires_grad=True)
        weights = torch.randn(size, 3)
        (mine,), (theirs,) = (torch.autograd.grad((f(x, scale)[0] * weights).sum(), scale) for f in (compiled, program))
        close(mine, theirs)
    assert compiles(compiled) == 1


def solved_in_chunks(x: torch.Tensor) -> torch.Tensor:
    b, n, d = x.shape
    chunks = F.pad(x, (0, 0, 0, -n % 4)).reshape(b, -1, 4, d)
    found = torch.linalg.solve_triangular(chunks @ chunks.mT, chunks, upper=False, unitriangular=True)
    result = torch.zeros_like(found)  # its strides are the columns', with sizes that could be 0
    for position in range((n + 3) // 4):
        result[:, position] = found[:, position] * 2
    return result.reshape(b, -1, d)[:, :n]


def warped(x: torch.Tensor) -> torch.Tensor:
    maps = x.transpose(0, 1)
    return F.grid_sample(maps[:, None], F.affine_grid(maps, [maps.shape[0], 1, 2, 3], align_corners=False), align_corners=False)


def scanned(x: torch.Tensor) -> torch.Tensor:
    def combined(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return associative_scan(combined, (x.sigmoid(), x), dim=1, combine_mode="generic")[1]


@pytest.mark.parametrize("program", [solved_in_chunks, warped, scanned])
def test_gradients_of_varying_sizes(program: Any) -> None:
    compiled = minicompile.compile(program, options=STRICT)
    for length in (6, 7, 8):
        x = torch.randn(2, length, 3).mul(0.5).requires_grad_()
        close(*(torch.autograd.grad(run(x).square().sum(), x)[0] for run in (compiled, program)))
    assert compiles(compiled) <= 2 and not compiled.records.fallbacks and not compiled.records.graph_breaks


def test_a_half_left_to_eager_views_what_eager_lays_out_otherwise() -> None:
    graph = torch.fx.Graph()
    graph.output((graph.call_function(torch.ops.aten.view.default, (graph.placeholder("x"), [6])),))
    x = torch.arange(6).view(2, 3).t()
    close(eager_call(GraphModule(nn.Module(), graph))([x]), (x.reshape(6),))


@pytest.mark.parametrize("part", [lambda x: x[..., :-1], lambda x: x[::2], lambda x: x.t()[1:], lambda x: x[:, None].expand(-1, 3, -1)])
@pytest.mark.parametrize("dynamic", [True, False])
def test_the_gradient_of_a_part_is_read_as_it_is_laid_out(part: Any, dynamic: bool) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return part(x.clone()), x.flip(-1)

    compiled = minicompile.compile(program, dynamic=dynamic)
    for size in ((4, 6), (7, 5)):
        x = torch.randn(size, requires_grad=True)
        ours, eager = compiled(x), program(x)
        given = [torch.randn_like(value) for value in eager]
        torch.testing.assert_close(torch.autograd.grad(ours, x, given), torch.autograd.grad(eager, x, given))
        assert 0 in eager[0].stride() or ours[0].stride() == eager[0].stride()


@pytest.mark.parametrize("program, fits, does_not", [
    (lambda x, y: torch.select_scatter(x, y, 0, 1), (6,), (5,)),
    (lambda x, y: torch.slice_scatter(x, y, 0, 1, 3), (2, 6), (3, 6)),
    (lambda x, y: torch.diagonal_scatter(x, y), (4,), (5,)),
    (lambda x, y: x.index_add(0, torch.arange(3), y), (3, 6), (3, 5)),
    (lambda x, y: x.index_put((torch.arange(2),), y), (2, 6), (3, 6)),
])  # fmt: skip
def test_what_does_not_fit_where_it_is_written_is_refused_at_every_size(program: Any, fits: Any, does_not: Any) -> None:
    x, compiled = torch.randn(4, 6), minicompile.compile(program, dynamic=True)
    y = torch.randn(fits)
    torch.testing.assert_close(compiled(x, y), program(x, y))
    with pytest.raises((RuntimeError, IndexError)):
        compiled(x, torch.randn(does_not))


@pytest.mark.parametrize("function", [
    lambda x, n: x.as_strided((n,), (2,)) + 1, lambda x, n: x[1:].unsqueeze(0).as_strided((2, n), (1, 1)) + x.sum(),
    lambda x, n: F.pad(x, (n, -n)), lambda x, n: F.pad(x.expand(3, -1), (-n, 0)) + 1,
])  # fmt: skip
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_what_reaches_beyond_a_tensor_is_refused_at_every_size(function: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = minicompile.compile(function, dynamic=dynamic)
    for size, n in ((8, 4), (9, 3), (12, 5), (5, 5), (6, 9), (3, 4), (9, 5), (0, 2)):
        x = torch.randn(size)
        try:
            expected = function(x, n)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                compiled(x, n)
            assert str(raised.value) == str(error)
        else:
            torch.testing.assert_close(compiled(x, n), expected)


def test_what_becomes_empty_stays_in_the_graph() -> None:
    def cut(x: torch.Tensor, n: int) -> torch.Tensor:
        return F.pad(x, (-n, 0))

    compiled = minicompile.compile(cut, dynamic=True, options={"suppress_errors": False})
    for columns in (5, 7, 4, 6):
        x = torch.randn(6, columns)
        torch.testing.assert_close(compiled(x, 4), cut(x, 4))


@pytest.mark.filterwarnings("ignore")
def test_random_programs_of_views_and_writes_at_several_sizes() -> None:
    assert not [text for text in map(index_programs.difference, range(12)) if text]


@pytest.mark.parametrize("function", [lambda x: torch.sgn(x) * x, lambda x: torch.linalg.multi_dot([x, x.t(), x])])
def test_operators_whose_code_in_pytorch_wants_plain_sizes(function: Callable[..., Any]) -> None:
    compiled = minicompile.compile(function, dynamic=True, options={"suppress_errors": False})
    for sizes in ((3, 5), (4, 7), (6, 2)):
        x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
        ours, eager = compiled(x), function(x)
        torch.testing.assert_close(ours, eager)
        torch.testing.assert_close(torch.autograd.grad(ours.sum(), x), torch.autograd.grad(eager.sum(), x))


KEEPS_NUMBERS: dict[str, Callable[..., Any]] = {
    "an element": lambda x, n: (x[n], x[:, n - 1], x[..., -n, None], x[1:, n][torch.tensor([0, 1])]),
    "an element set": lambda x, n: (x.clone().index_fill_(0, torch.tensor([0]), 1.0), with_column(x, n), with_column(x.t(), n)),
    "tensors of numbers": lambda x, n: (torch.tensor(n) * x, torch.tensor([n, 3, x.shape[0]]), torch.tensor(n, dtype=torch.float32),
                                        x.new_tensor([n, len(x)]), x.new_tensor((n, 2), dtype=torch.int8)),
    "steps between two ends": lambda x, n: (torch.linspace(-1, 1, n), torch.linspace(0, n, x.shape[0], dtype=torch.float64)),
    "products of all pairs": lambda x, n: (torch.kron(x, torch.ones(2)), torch.kron(x[0], x[:n])),
    "a trace": lambda x, n: (x @ x.t()).trace() * n,
    "largest of windows": lambda x, n: (F.max_pool1d(x, 2), F.max_pool1d(x[None], 3, stride=1, padding=1)),
    "classes": lambda x, n: F.one_hot(torch.arange(n), n + 1),
    "gaussian loss": lambda x, n: F.gaussian_nll_loss(x, x * 2, x.abs()),
    "the diagonal of a square part": lambda x, n: x[: 12 // n, : 12 // n].diagonal() * 2,
    "diagonals": lambda x, n: (x.diagonal(), x.t().diagonal(-1) * 2, x.diagonal_scatter(x[:, 0]), x[:, n:].diagonal(1)),
    "arithmetic": lambda x, n: (x * float(n), x + abs(n - 6), x[: n & 3 | 4], x - (n << 1) // (n >> 1), divmod(len(x), 3), pow(n, 2)),
    "products of sizes": lambda x, n: (x.view(math.prod(x.shape)), x.shape.numel() * n, math.prod([2.5, n], start=len(x))),
    "lists of sizes": lambda x, n: (torch.zeros(list(map(int, x.shape))), x.expand(torch.broadcast_shapes(x.shape, (2, 1, 1))),
                                    sorted(x.shape), 5 in x.shape),
    "an idle dropout": lambda x, n: F.dropout(x[:n], 0.5, False),
}


def with_column(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x * 2
    y[:, n] = x[:, 0]
    y[n] += 1
    return y


@pytest.mark.parametrize("name", KEEPS_NUMBERS)
def test_numbers_that_vary_are_no_constants(name: str) -> None:
    compiled = minicompile.compile(KEEPS_NUMBERS[name], dynamic=True, options={"suppress_errors": False})
    for size, n in ((9, 4), (7, 3), (12, 8), (11, 2)):
        results = []
        for run in (KEEPS_NUMBERS[name], compiled):
            x = torch.randn(size, size + 1, generator=torch.Generator().manual_seed(size), requires_grad=True)
            found = run(x, n)
            watched = [value.sum() for value in tree_leaves(found) if getattr(value, "requires_grad", False)]
            results.append((found, torch.autograd.grad(sum(watched), x) if watched else ()))
        torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
    assert compiled.stats.graphs <= 2  # with torch 2.11 windows are guarded by what is left over
    assert compiled.stats.graph_breaks == 0


def windows(x: torch.Tensor) -> Any:
    """Attention in windows of a padded image, padded in the two ways that people write."""
    number, rows, columns, width = x.shape
    below, right = -rows % 4, (4 - columns % 4) % 4
    y = F.pad(x, (0, 0, 0, right, 0, below))
    height, length = y.shape[1:3]
    y = y.view(number, height // 4, 4, length // 4, 4, width).transpose(2, 3).reshape(-1, 16, width)
    y = (y @ y.transpose(1, 2)).softmax(-1) @ y
    y = y.view(number, height // 4, length // 4, 4, 4, width).transpose(2, 3).reshape(number, height, length, width)
    return x + y[:, :rows, :columns], below, right


def test_sizes_of_windows_of_a_padded_image_stay_short() -> None:
    compiled = minicompile.compile(windows, options=STRICT)
    for shape in ((1, 6, 7), (2, 9, 10), (3, 13, 9), (2, 7, 11)):
        x = torch.randn(*shape, 2, generator=torch.Generator().manual_seed(0))
        close(compiled(x), windows(x))
    assert len(compiled.records.graphs) == 2 and not compiled.records.graph_breaks
    # Quotients of quotients would be in every one, and each question about them takes a second.
    assert all(str(guard.sentence).count("//") <= 4 for guard in compiled.records.graphs[1].guards)


class CausalBlock(nn.Module):
    """Attention as most models write it; the copy back into the order of tokens changes nothing in eager."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.inside(x).split(width, 2)
        query, key, value = (part.view(batch, length, 2, width // 2).transpose(1, 2) for part in parts)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.outside(found.transpose(1, 2).contiguous().view(batch, length, width))


def test_attention_of_any_length_lies_in_memory_as_in_eager() -> None:
    block = CausalBlock()
    compiled = minicompile.compile(block, options={"suppress_errors": False})
    for batch, length in ((2, 6), (2, 5), (2, 9), (3, 4), (4, 11)):
        x = torch.randn(batch, length, 8)
        ours, eager = compiled(x), block(x)
        assert ours.stride() == eager.stride()
        torch.testing.assert_close(ours, eager)
        gradients = [torch.autograd.grad(out.square().sum(), list(block.parameters())) for out in (ours, eager)]
        torch.testing.assert_close(*gradients)
    assert compiled.stats.graphs <= 3 and compiled.stats.fallbacks == 0


@pytest.mark.parametrize("function", [
    lambda x, i: x[i] * 2, lambda x, i: x[..., i, None] * 2, lambda x, i: x.select(1, i) * 2, lambda x, i: torch.select(x, 0, -i) + 1,
    lambda x, i: x[i + 1, i] * 2, lambda x, i: x[torch.arange(3), i] * 2,
])  # fmt: skip
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_place_that_varies_is_within_its_dimension_or_refused(function: Callable[..., Any], dynamic: bool | None) -> None:
    compiled, x = minicompile.compile(function, dynamic=dynamic, options={"cache": False}), torch.rand(3, 4)
    for i in (2, 1, 0, 3, 4, -2, -3, -4, -5, 1):
        try:
            expected = function(x, i)
        except IndexError as error:
            with pytest.raises(IndexError) as found:
                compiled(x, i)
            assert str(found.value) == str(error)
        else:
            assert torch.equal(compiled(x, i), expected)


def test_a_write_into_the_only_row_is_checked() -> None:
    def fill(x: torch.Tensor, i: torch.Tensor) -> None:
        x[:, i] = 0.0

    compiled, x = minicompile.compile(fill, dynamic=True, options=STRICT), torch.ones(4, 1, 5)
    with pytest.raises(IndexError, match="index 1 is out of bounds"):
        compiled(x, torch.tensor([0, 1]))
    compiled(x, torch.tensor([0, -1]))
    assert not x.any()


def broadcast_by_an_operator(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(3) + x[:, 1::2]


def broadcast_by_a_copy(x: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(x.shape[0], 3).copy_(x[:, : x.shape[1] // 2]).sum(1)


@pytest.mark.parametrize("function", [broadcast_by_an_operator, broadcast_by_a_copy])
def test_what_is_one_by_a_computation_is_broadcast(function: Callable[..., Any]) -> None:
    compiled = minicompile.compile(function, dynamic=True, options=STRICT)
    for length in (2, 3, 6, 7, 3):
        check(function, torch.randn(4, length, requires_grad=True), compile=lambda _: compiled, calls=1)


@pytest.mark.parametrize("function", [
    lambda x, n, d: x + n // d, lambda x, n, d: x + n % d, lambda x, n, d: x + divmod(n, -d)[1], lambda x, n, d: x + n // (n - d),
    lambda x, n, d: x + n % (d - n), lambda x, n, d: x.long() + n * 2**31 + d, lambda x, n, d: x.double() + n * 10**9 // d, lambda x, n, d: x + int(n / d) + round(n / d) + math.floor(n / d) + math.ceil(n / d),
])  # fmt: skip
@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers_are_multiplied_and_divided_as_python_does_it(function: Callable[..., Any], dynamic: bool | None) -> None:
    compiled, x = minicompile.compile(function, dynamic=dynamic, options={"cache": False}), torch.zeros(2)
    for n, d in ((7, 2), (8, 3), (-7, 2), (-8, 3), (7, -2), (9, -4), (-9, -4), (-10, -3), (6, 3), (-6, 3), (5, 7), (-5, 7)):
        assert torch.equal(compiled(x, n, d), function(x, n, d)), (n, d)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sizes_beside_halves_are_what_the_verifier_expects(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x / x.shape[0] + x.mean(0) * x.shape[1]

    compiled = minicompile.compile(function, dynamic=True, options={"verify": True, "suppress_errors": False, "cache": False})
    for size in (5, 7):
        check(function, torch.randn(size, 3).to(dtype), compile=lambda _: compiled)


def test_a_long_convolution_by_fft_behind_a_causal_one_varies_in_length() -> None:
    convolution = nn.Conv1d(4, 4, 3, padding=2)

    def function(x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-1]
        spectrum = torch.fft.rfft(convolution(x)[..., :length], n=2 * length)
        return torch.fft.irfft(spectrum * spectrum, n=2 * length)[..., :length]

    compiled = minicompile.compile(function, options={"suppress_errors": False, "cache": False})
    for length in (8, 10, 3, 12):
        check(function, torch.randn(2, 4, length, requires_grad=True), compile=lambda _: compiled)
    assert compiled.stats.graphs <= 3


def factors_by_qr(x: torch.Tensor) -> Any:
    q, r = torch.linalg.qr(x)
    return q @ r, r.abs(), q.stride(), r.shape


def factors_by_svd(x: torch.Tensor) -> Any:
    left, values, right = torch.linalg.svd(x, full_matrices=False)
    return (left * values) @ right + 1, values * 2, left.stride(), right.shape


def factors_by_lu(x: torch.Tensor) -> Any:
    factors, pivots = torch.linalg.lu_factor(x)
    permutation, lower, upper = torch.lu_unpack(factors, pivots)
    return permutation @ lower @ upper, pivots, lower * 2


@pytest.mark.parametrize("function", [
    factors_by_qr, factors_by_svd, factors_by_lu, lambda x: torch.linalg.lu(x)[1] * 2, lambda x: torch.linalg.matrix_rank(x) + 1,
    lambda x: torch.linalg.matrix_norm(x, "nuc"), lambda x: torch.linalg.svd(torch.stack([x, x.exp()]), full_matrices=False)[1] * 2,
])  # fmt: skip
def test_factors_are_as_long_as_the_shorter_side(function: Callable[..., Any]) -> None:
    compiled = minicompile.compile(function, dynamic=True, options=STRICT)
    for sizes in ((6, 3), (8, 4), (3, 7), (4, 9), (5, 2), (5, 5)):
        x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
        ours, eager = compiled(x), function(x)
        close(ours, eager)
        found, expected = (tree_leaves(result)[0] for result in (ours, eager))
        if expected.requires_grad:
            close(torch.autograd.grad(found.sum(), x)[0], torch.autograd.grad(expected.sum(), x)[0])
    assert compiled.stats.graphs <= 3 and not compiled.stats.fallbacks


def grid_of_size(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


def as_many_classes_as_rows(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    ids = x.flatten(1).argmax(1) * 0
    return F.one_hot(ids, x.shape[0] // 2).to(x.dtype).T @ theta.flatten(1)


@pytest.mark.parametrize("function", [grid_of_size, as_many_classes_as_rows])
def test_nothing_is_refused_as_in_eager_beside_sizes_that_vary(function: Any) -> None:
    compiled = minicompile.compile(function, dynamic=True)
    for batch in (4, 6, 0):
        theta, x = torch.randn(batch, 2, 3), torch.randn(batch, 1, 4, 5)
        if batch:
            torch.testing.assert_close(compiled(theta, x), function(theta, x))
            continue
        with pytest.raises((ValueError, RuntimeError)) as eager:
            function(theta, x)
        with pytest.raises(type(eager.value), match=re.escape(str(eager.value))):
            compiled(theta, x)


class PaddedScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, 16 - x.shape[1]))[:, : x.shape[1]] * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def padded_without_gradients(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        weights = F.pad(x, (1, 2))
    return weights, weights[:, 1:-2] * x


@pytest.mark.parametrize("function", [PaddedScale.apply, padded_without_gradients])
def test_what_is_padded_without_gradients_requires_none(function: Any) -> None:
    compiled = minicompile.compile(lambda x: function(x), options=STRICT)
    for length in (5, 7, 6):
        x = torch.randn(2, length, requires_grad=True)
        ours, eager = tree_leaves(compiled(x)), tree_leaves(function(x))
        assert [each.requires_grad for each in ours] == [each.requires_grad for each in eager]
        close(torch.autograd.grad(ours[-1].sum(), x), torch.autograd.grad(eager[-1].sum(), x))
    assert not compiled.graph_breaks and compiles(compiled) == 2
