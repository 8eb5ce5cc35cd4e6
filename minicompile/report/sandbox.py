"""Calls of the user's function that leave arguments, modules and random state as they were.

What the function does to Python objects other than its arguments and modules (globals, files, printing) happens at
every call. This module must not know how anything is compiled.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only


class Sandbox:
    """One user function with its arguments.

    Attributes:
        target: the function or module as the user gave it.
        device: `cuda` if a tensor of the arguments or modules is there, else `cpu`.
    """

    def __init__(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.target, self.args, self.kwargs = target, args, kwargs
        self.modules = modules_of(target, args, kwargs)
        self.output_count = 0
        self.differentiable_names: list[str] = []
        held = [*leaves((args, kwargs)), *(p for module in self.modules for p in module.parameters())]
        self.device = "cuda" if any(tensor.is_cuda for tensor in held) else "cpu"

    def prepared(self, function: Callable[..., Any], double: bool = False) -> Callable[[], list[Any]]:
        """A call of `function` on one copy of the arguments; it returns outputs, then gradients of their sum."""
        args, kwargs = copied((self.args, self.kwargs), double)
        modules = modules_of(function, args, kwargs) if double else self.modules
        named = [(f"argument {number}", tensor) for number, tensor in enumerate(leaves((args, kwargs)))]
        named += [pair for module in modules for pair in module.named_parameters()]
        sources = {name: tensor for name, tensor in named if tensor.requires_grad and tensor.is_leaf}

        def call() -> list[Any]:
            outputs, gradients = outputs_and_gradients(function(*args, **kwargs), list(sources.values()))
            self.output_count, self.differentiable_names = len(outputs), list(sources) if gradients else []
            return [*outputs, *gradients]

        return call

    def once(self, function: Callable[..., Any], double: bool = False) -> list[Any]:
        """Outputs and gradients of one call from the state in which everything was found."""
        with self.untouched():
            return self.prepared(function, double)()

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """Restore the state of the modules and of the random number generators afterwards."""
        state = [tensor for module in self.modules for tensor in (*module.parameters(), *module.buffers())]
        saved = [(tensor, tensor.detach().clone()) for tensor in state]
        devices = list(range(torch.cuda.device_count())) if self.device == "cuda" else []
        with torch.random.fork_rng(devices):
            try:
                yield
            finally:
                with torch.no_grad():
                    for tensor, before in saved:
                        if not torch.equal(tensor, before):
                            tensor.copy_(before)

    def in_double(self) -> Callable[..., Any]:
        """The target over fp64 copies of its modules."""
        target: Any = self.target
        if isinstance(target, types.MethodType) and isinstance(target.__self__, torch.nn.Module):
            return types.MethodType(target.__func__, doubled(target.__self__))
        if not isinstance(target, types.FunctionType) or not self.modules:
            return doubled(target)
        names = {name: doubled(value) for name, value in target.__globals__.items() if name in target.__code__.co_names}
        cells = tuple(types.CellType(doubled(cell.cell_contents)) for cell in target.__closure__ or ())
        twin = types.FunctionType(target.__code__, {**target.__globals__, **names}, closure=cells)
        twin.__defaults__, twin.__kwdefaults__ = target.__defaults__, target.__kwdefaults__
        return twin

    def resized(self, size: int) -> Sandbox:
        """The same call with another size of the first dimension of every tensor whose size there is `batch`."""
        batch = self.batch

        def resize(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.ndim or tensor.shape[0] != batch:
                return tensor
            rows = torch.arange(size, device=tensor.device) % batch
            return tensor.detach().index_select(0, rows).requires_grad_(tensor.requires_grad)

        args, kwargs = tree_map_only(torch.Tensor, resize, (self.args, self.kwargs))
        return Sandbox(self.target, args, kwargs)

    @property
    def batch(self) -> int | None:
        """The size of the first dimension of the first tensor."""
        return next((tensor.shape[0] for tensor in leaves((self.args, self.kwargs)) if tensor.ndim), None)


def doubled(value: Any) -> Any:
    """An fp64 copy of a module or tensor; anything else as it is."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def modules_of(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.nn.Module]:
    """The modules that a call may change: the target, its owner, its closure and globals, the arguments."""
    found: list[Any] = [target, getattr(target, "__self__", None), *args, *kwargs.values()]
    function = getattr(target, "__func__", target)
    if isinstance(function, types.FunctionType):
        variables = inspect.getclosurevars(function)
        found += [*variables.nonlocals.values(), *variables.globals.values()]
    return list({id(value): value for value in found if isinstance(value, torch.nn.Module)}.values())


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers (an output of Hugging Face's is a dictionary too)."""
    parts = tree_leaves(dict(value) if isinstance(value, dict) else value)
    return [part for part in parts if isinstance(part, torch.Tensor)]


def copied(value: Any, double: bool = False) -> Any:
    """Arguments with tensors in memory of their own, shared storage kept shared; in fp64 if asked."""
    storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    memo: dict[int, torch.Tensor] = {}

    def duplicate(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in memo:
            return memo[id(tensor)]
        if tensor.layout != torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return tensor
        memory = tensor.untyped_storage()
        key = (memory.data_ptr(), tensor.dtype)
        if key not in storages:
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory)
            storages[key] = whole.double() if double and tensor.is_floating_point() else whole.clone()
        copy_ = storages[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        memo[id(tensor)] = copy_.detach().requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    return tree_map_only(torch.Tensor, duplicate, value)


def outputs_and_gradients(result: Any, sources: list[torch.Tensor]) -> tuple[list[Any], list[Any]]:
    """The tensors of a result, then the gradients of `sources` if there are any."""
    outputs = leaves(result)
    differentiable = [tensor for tensor in outputs if tensor.requires_grad and tensor.grad_fn is not None]
    gradients: list[Any] = []
    if sources and differentiable:
        ones = [torch.ones_like(tensor) for tensor in differentiable]
        gradients = list(torch.autograd.grad(differentiable, sources, ones, allow_unused=True))
    return [tensor.detach() for tensor in outputs], gradients


def plain(value: Any) -> Any:
    """A tensor without its autograd history."""
    return value.detach() if isinstance(value, torch.Tensor) else value
