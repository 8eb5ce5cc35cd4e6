"""A compiled function used by PyTorch's own tools: each gets what it would get from the original."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrizations, prune
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import minicompile

pytestmark = pytest.mark.filterwarnings("ignore")
equal = torch.testing.assert_close


def function(x: torch.Tensor) -> torch.Tensor:
    return (torch.sin(x) * x).sum(-1)


TOOLS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "vmap": lambda f, x: torch.vmap(f)(x),
    "grad": lambda f, x: torch.func.grad(f)(x[0]),
    "vmap of grad": lambda f, x: torch.vmap(torch.func.grad(f))(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "hessian": lambda f, x: torch.func.hessian(f)(x[0]),
    "jacobian": lambda f, x: torch.autograd.functional.jacobian(f, x),
    "jit.trace": lambda f, x: torch.jit.trace(f, (x,))(x + 1),
    "make_fx": lambda f, x: make_fx(f)(x)(x + 1),
    "symbolic_trace": lambda f, x: torch.fx.symbolic_trace(lambda y: f(y))(x),
    "torch.compile": lambda f, x: torch.compile(f, backend="eager")(x),
    "torch.compile around": lambda f, x: torch.compile(lambda y: f(y) + 1, backend="eager")(x),
    "checkpoint": lambda f, x: checkpoint(f, x, use_reentrant=False),
    "save_on_cpu": lambda f, x: saved_elsewhere(f, x),
}


def saved_elsewhere(f: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return f(x)


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_sees_the_function(tool: str, used_before: bool) -> None:
    torch.manual_seed(0)
    compiled, x, y = minicompile.compile(function), *(torch.randn(5, 7) for _ in range(2))
    if used_before:
        compiled(y)
    x.requires_grad_(tool in ("checkpoint", "save_on_cpu"))
    expected, got = TOOLS[tool](function, x), TOOLS[tool](compiled, x)
    equal(got, expected)
    if x.requires_grad:
        equal(torch.autograd.grad(got.sum(), x), torch.autograd.grad(expected.sum(), x))


@pytest.mark.parametrize("used_before", [False, True])
def test_fake_and_meta_tensors_stay_so(used_before: bool) -> None:
    compiled, x = minicompile.compile(function), torch.randn(5, 7)
    if used_before:
        compiled(x)
    with FakeTensorMode() as mode:
        assert isinstance(compiled(mode.from_tensor(x)), FakeTensor)
    assert compiled(x.to("meta")).device.type == "meta"
    equal(compiled(x), function(x))


def test_modes_see_the_operators() -> None:
    seen: list[Any] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, called: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(called)
            return called(*args, **(kwargs or {}))

    product, x = minicompile.compile(lambda a: a @ a.T), torch.randn(5, 7)
    product(x)
    with Watch(), FlopCounterMode(display=False) as counter:
        product(x)
    assert seen and counter.get_total_flops() == 2 * 5 * 5 * 7


def test_the_default_device_is_read_at_every_call() -> None:
    zeros = minicompile.compile(lambda n: torch.zeros(n))
    assert zeros(3).device.type == "cpu"
    with torch.device("meta"):
        assert zeros(3).device.type == "meta"


def test_a_module_changed_after_its_first_call() -> None:
    x, module = torch.randn(5, 7), nn.Linear(7, 7)
    compiled = minicompile.compile(module)
    for change in (
        lambda: prune.l1_unstructured(module, "weight", 0.5),
        lambda: prune.remove(module, "weight"),
        lambda: parametrizations.orthogonal(module),
        lambda: compiled.load_state_dict({name: value * 2 for name, value in module.state_dict().items()}),
        lambda: compiled.to(torch.bfloat16).float(),
        lambda: compiled.requires_grad_(False),
    ):
        equal(compiled(x), module(x))
        change()
        equal(compiled(x), module(x))
    module = nn.Linear(7, 7)
    compiled = minicompile.compile(module)
    doubled = {name: value * 2 for name, value in module.named_parameters()}
    equal(torch.func.functional_call(compiled, doubled, (x,)), torch.func.functional_call(module, doubled, (x,)))
    equal(compiled(x), module(x))
    stream = io.BytesIO()
    torch.save(compiled, stream)
    stream.seek(0)
    for twin in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled)), torch.load(stream, weights_only=False)):
        equal(twin(x), module(x))
