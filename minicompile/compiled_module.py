"""A compiled `nn.Module` that can stand wherever the original stood.

It is an instance of a subclass of the original's class and shares the original's `__dict__`: parameters, buffers,
submodules, hooks, flags and every attribute are the same objects under the same names; only `forward` is compiled.
This module must not compile anything itself: it is given the function that makes a compiled callable.
"""

from __future__ import annotations

import copy
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

CompileForward = Callable[[Callable[..., Any]], Any]

PLAIN_CALL = torch.nn.Module.__call__
OLD_PREFIX = "_orig_mod."
RECORDS = frozenset({"stats", "recompiles", "graph_breaks", "timings", "differences"})
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(getattr(torch.nn.modules.module, f"_global{name}") for name in HOOKS)


class CompiledForward:
    """`forward` of compiled modules; that of their class is the user's own.

    A function given to a compiled module, the original or its class is compiled when it is first asked for.
    """

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return super(CompiledModule, owner).forward  # type: ignore[misc]
        original = module._minicompile_original
        given = module.__dict__.get("forward") or type(original).forward
        if given is not module._minicompile_given:
            given = given_forward(original)
            if given is not module._minicompile_given:
                object.__setattr__(module, "_minicompile_given", given)
                object.__setattr__(module, "_minicompile_forward", module._minicompile_compile(original.forward))
        return module._minicompile_forward

    def __set__(self, module: Any, function: Callable[..., Any]) -> None:
        module.__dict__["forward"] = function

    def __delete__(self, module: Any) -> None:
        del module.__dict__["forward"]


class CompiledModule(torch.nn.Module):
    """What `minicompile.compile(module)` returns; `__wrapped__` is the module it was made from."""

    __slots__ = ("_minicompile_compile", "_minicompile_forward", "_minicompile_given", "_minicompile_original")

    _minicompile_original: torch.nn.Module
    _minicompile_forward: Any
    _minicompile_given: Any
    _minicompile_compile: CompileForward

    # Capture sees the original in place of a compiled module that a captured function calls.
    __minicompile_compiled__ = "_minicompile_original"

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """An instance of the user's class, not compiled, for methods that make another one (`type(self)(...)`)."""
        return next(kind for kind in cls.__mro__ if not issubclass(kind, CompiledModule))(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Do nothing: the original class must not see its compiled twin as a new subclass to register."""

    def call_without_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """`__call__` where the class has PyTorch's own: skips its bookkeeping when no hook is registered."""
        state = self.__dict__
        for hooks in HOOKS:
            if state[hooks]:
                return self._call_impl(*args, **kwargs)
        if any(GLOBAL_HOOKS):
            return self._call_impl(*args, **kwargs)
        if torch.nn.Module.__call__ is not PLAIN_CALL:
            return torch.nn.Module.__call__(self, *args, **kwargs)
        return self.forward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """What the user's module has; records of the compiled forward only under names that the module has not."""
        if name == "__wrapped__":  # the class has none
            return self._minicompile_original
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in RECORDS:
                raise
            return getattr(self.forward, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """As the module's own; a class given to it, as lazy modules do at their first call, is given to both."""
        if name != "__class__":
            return super().__setattr__(name, value)
        self._minicompile_original.__class__ = value
        object.__setattr__(self, "__class__", twin_class(value))

    forward: Any = CompiledForward()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        old = prefix + OLD_PREFIX
        for key in [key for key in state_dict if key.startswith(old)]:
            state_dict[prefix + key[len(old) :]] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return compile_module, (self._minicompile_original, self._minicompile_compile)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        return compile_module(copy.deepcopy(self._minicompile_original, memo), self._minicompile_compile)

    def __copy__(self) -> CompiledModule:
        return compile_module(copy.copy(self._minicompile_original), self._minicompile_compile)


def given_forward(module: torch.nn.Module) -> Any:
    """What a module or its class has as `forward`: a function, as a rule, or a descriptor that makes a new one each time."""
    return module.__dict__.get("forward") or inspect.getattr_static(type(module), "forward")


def twin_class(cls: type[torch.nn.Module]) -> type[CompiledModule]:
    """The class of compiled instances of `cls`: one for all of them, as long as there are any."""
    called_plainly = cls.__call__ is torch.nn.Module.__call__
    known = _twin_classes.get((cls, called_plainly))
    return known or _twin_classes.setdefault((cls, called_plainly), make_twin_class(cls, called_plainly))


_twin_classes: weakref.WeakValueDictionary[tuple[type, bool], type[CompiledModule]] = weakref.WeakValueDictionary()


def make_twin_class(cls: type[torch.nn.Module], called_plainly: bool) -> type[CompiledModule]:
    """A class of compiled instances; `called_plainly` says whether these may be called without the bookkeeping for hooks."""
    names: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__slots__": (),
    }
    if "__firstlineno__" in vars(cls):  # where the source of the class is, from Python 3.13 on
        names["__firstlineno__"] = vars(cls)["__firstlineno__"]
    if called_plainly:
        names["__call__"] = CompiledModule.call_without_hooks
    return types.new_class(cls.__name__, (CompiledModule, cls), exec_body=lambda namespace: namespace.update(names))


def compile_module(original: torch.nn.Module, compile_forward: CompileForward) -> CompiledModule:
    """The compiled twin of `original`; `compile_forward` must be picklable for the twin to be."""
    compiled: Any = object.__new__(twin_class(type(original)))
    object.__setattr__(compiled, "__dict__", original.__dict__)
    object.__setattr__(compiled, "_minicompile_original", original)
    object.__setattr__(compiled, "_minicompile_compile", compile_forward)
    object.__setattr__(compiled, "_minicompile_given", given_forward(original))
    object.__setattr__(compiled, "_minicompile_forward", compile_forward(original.forward))
    return compiled
