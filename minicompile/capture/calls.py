"""Calls on the symbolic stack: torch operations become nodes, Python functions are inlined, builtins run natively.

Native code may only run on values that are safe to hand to it: constants, objects made while tracing, stand-ins. The
rules for single builtins are in `builtin_rules`; this module decides which rule applies.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import decimal
import enum
import fractions
import functools
import inspect
import math
import operator
import re
import struct
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from minicompile.capture import torch_interface
from minicompile.capture.attributes import (
    NEVER_REPLACED,
    bind_descriptor,
    class_lookup,
    class_value,
    get_attribute,
    guard_signature,
    instance_dict,
)
from minicompile.capture.break_kinds import Break, Control, RaisedInUserCode, RunEager, Stop
from minicompile.capture.comparing import refuse_objects, refuse_own_items, settled
from minicompile.capture.held_numbers import known_ahead
from minicompile.capture.kinds import isinstance
from minicompile.capture.made_leaves import becomes_leaf
from minicompile.capture.native import (
    BREAKING_MODULES,
    CONTAINERS,
    INLINED,
    LOOK_OUTSIDE,
    NATIVE_OWNERS,
    NATIVE_PACKAGES,
    fits,
    is_known_to_break,
    is_numpy_arithmetic,
    is_pure_native,
    native_name,
)
from minicompile.capture.shared_memory import is_pointwise, refuse_shared_writes
from minicompile.capture.side_effects import MISSING, NATIVE_BASES, native_base
from minicompile.capture.source import HOOK_TABLES, Baked, CachedCall, Source, is_trusted_module
from minicompile.capture.symbolic_float import OPERANDS, SymbolicFloat, computed, has_rounded_numbers, in_python
from minicompile.capture.symbolic_size import EXAMPLES, concrete, is_symbolic, spelled_out
from minicompile.capture.texts import check_printable, is_of_users_class, leaves, refuse_attributes
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import Args, Generator, Keywords, Tracer
from minicompile.capture.values import (
    CONSTANT_TYPES,
    IDENTITY_TYPES,
    NUMPY_NUMBERS,
    VALUES,
    TensorMethod,
    force,
    guard_order,
    guard_structure,
    is_outside,
    never_changes,
    slot,
)
from minicompile.ir import autocast

SPECIAL: dict[Any, Callable[..., Any]] = {}
DISABLED_MARK = "__minicompile_disabled__"
COMPILED_MARK = "__minicompile_compiled__"
Module = torch.nn.Module


def special(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the rule for calls of some builtins; the rule takes (tracer, args, kwargs)."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            SPECIAL[function] = rule
        return rule

    return register


def method(kinds: Any, *names: str) -> Any:
    """Register the rule of a method of some classes; it takes (tracer, owner, args, kwargs)."""
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    known = [kind for kind in (*kinds, *NATIVE_BASES) if issubclass(kind, kinds)]

    def register(rule: Any) -> Any:
        special(*(getattr(kind, name) for kind in known for name in names))(
            lambda tracer, args, kwargs: rule(tracer, args[0], args[1:], kwargs))
        return rule

    return register


def direct(rules: dict[Any, Any]) -> None:
    """Register builtins that are a name for one of the tracer's own functions, of the tracer and the arguments."""
    SPECIAL.update({function: lambda tracer, args, kwargs, rule=rule: rule(tracer, *args) for function, rule in rules.items()})


class RecordTorch(TorchFunctionMode):
    """Records the torch operations that native code performs on fake tensors. Where one of them cannot be recorded, tracing
    stops, whatever that code does about the exception."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer
        self.stopped: Stop | None = None

    def __enter__(self) -> RecordTorch:
        self.before, self.tracer.native = self.tracer.native, True
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.tracer.native = self.before
        if self.stopped is not None:
            raise self.stopped

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if not self.tracer.native or name == "__get__" or name in torch_interface.TENSOR_QUERY_METHODS:
            return func(*args, **(kwargs or {}))
        try:
            if args and isinstance(args[0], FakeTensor) and func is getattr(torch.Tensor, name, None):
                return call_tensor_method(self.tracer, args[0], name, args[1:], kwargs or {})
            return call(self.tracer, func, tuple(args), kwargs or {})
        except Stop as stop:
            self.stopped = self.stopped or stop
            raise


class Callback:
    """A traced callable as native code sees it."""

    def __init__(self, tracer: Tracer, function: Any) -> None:
        self.tracer, self.function = tracer, function

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.call_from_native(self.function, *resolved(self.tracer, args, kwargs))


class KeyFunction(Callback):
    """A traced callable, or `None` for what it is given, whose results native code compares."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return refuse_objects(self.tracer, args[0] if self.function is None else super().__call__(*args, **kwargs))


def call(tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Any:
    """The value of `function(*args, **kwargs)`."""
    kind = type(function)
    if kind is types.FunctionType:
        return call_function(tracer, function, args, kwargs)
    if kind is types.MethodType:
        return call(tracer, function.__func__, (function.__self__, *args), kwargs)
    if hasattr(kind, COMPILED_MARK):
        return call(tracer, get_attribute(tracer, function, getattr(kind, COMPILED_MARK)), args, kwargs)
    if isinstance(function, Module):
        return call_module(tracer, function, args, kwargs)
    if kind is types.BuiltinFunctionType and is_known_to_break(function):
        raise unknown_call(function)
    if kind is types.BuiltinFunctionType and function.__name__ == "append" and type(function.__self__) is list:
        if len(args) == 1 and not kwargs:
            return function.__self__.append(*args)  # needs neither the length of the list nor the value
    args, kwargs = resolved(tracer, args, kwargs)
    if kind is TensorMethod:
        return call_tensor_method(tracer, function.tensor, function.name, args, kwargs)
    if isinstance(function, type):
        return tracer.rules.make(tracer, function, args, kwargs)
    if kind is Callback:
        return call(tracer, function.function, args, kwargs)
    if isinstance(function, functools.partial):
        return call(tracer, function.func, (*function.args, *args), {**function.keywords, **kwargs})
    if isinstance(function, functools._lru_cache_wrapper):
        return call_cached(tracer, function, args, kwargs)
    if isinstance(function, NATIVE_CALLABLES):
        return call_native(tracer, function, args, kwargs)
    return call_object(tracer, function, args, kwargs)


PURE_CACHES = ("einops",)
"""Libraries whose functions with a cache depend on their arguments alone, and whose results nobody changes. Others are marked
as such by `torch.compiler.assume_constant_result`."""


def is_constant(value: Any) -> bool:
    """Whether a value is a constant, or a tuple of constants."""
    return all(map(is_constant, value)) if type(value) in (tuple, torch.Size) else type(value) in CONSTANT_TYPES


def call_cached(tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Any:
    """Call a function with a cache, for constants: what it returns is a value from outside, fetched again in each call."""
    label = getattr(function, "__qualname__", "a function")  # a `partial` with a cache has no name
    items, marked = (*args, *kwargs.values()), "_dynamo_marked_constant" in getattr(function, "__dict__", ())
    pure = marked or (function.__module__ or "").partition(".")[0] in PURE_CACHES
    if function.cache_parameters()["maxsize"] == 0 or id(function) in tracer.fresh:
        raise Break("unknown call", f"`{label}` has a cache that is not kept")
    for item in items:
        if not is_constant(item) and not isinstance(item, IDENTITY_TYPES):
            if type(item).__hash__ is not object.__hash__ or not is_outside(tracer, item):
                if pure:
                    return call(tracer, function.__wrapped__, args, kwargs)
                raise Break("unknown call", f"`{label}` has a cache and is called with more than constants")
            tracer.guards.identity(tracer.sources[id(item)], item)
    if not pure and (tracer.effects.any_pending() or torch_interface.torch_state() != tracer.state):
        raise Break("unknown call", f"`{label}` has a cache and might see what was changed before")
    try:
        with torch_interface.compiling(False):
            real = function(*args, **kwargs)
    except Exception:  # user code, which eager will run again and let raise
        raise Break("unknown call", f"`{label}` has a cache and raises") from None
    return fetched_again(tracer, function, args, kwargs, real)


def dispatched(tracer: Tracer, function: types.FunctionType, args: Args, kwargs: Keywords) -> Any:
    """The function that `functools.singledispatch` chooses for a class, asked for again in each call."""
    return fetched_again(tracer, function, args, kwargs, function(*args, **kwargs))


def shown_once(tracer: Tracer, function: types.FunctionType, args: Args, kwargs: Keywords) -> Any:
    """The result of a `__repr__` that prints an object nested in itself as three dots, or whatever was asked for."""
    held = {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())}
    text = held["user_function"]
    if any(frame.function is text and frame.variables.get(text.__code__.co_varnames[0]) is args[0] for frame in tracer.frames):
        return held.get("fillvalue", "...")
    return call(tracer, text, args, kwargs)


CLOSURE_RULES: dict[tuple[str, str], Callable[..., Any]] = {
    ("functools", "singledispatch.<locals>.dispatch"): dispatched,
    ("torch._dynamo.decorators", "graph_break"): lambda *_: None,
    ("dataclasses", "_recursive_repr.<locals>.wrapper"): shown_once,
    ("reprlib", "recursive_repr.<locals>.decorating_function.<locals>.wrapper"): shown_once,
}
"""Rules for functions that a library's function defines, or of a module that is loaded late, by module and name; they take
(tracer, function, args, kwargs)."""


def fetched_again(tracer: Tracer, function: Any, args: Args, kwargs: Keywords, real: Any) -> Any:
    """The stand-in for `real`, which `function(*args, **kwargs)` gives in every call."""
    shown = [item if is_constant(item) else id(item) for item in (*args, *kwargs.values())]
    key = (id(function), repr((shown, *kwargs)))
    source = tracer.sources.get(id(function)) or Baked(function, getattr(function, "__qualname__", "a function"))
    known = [item if is_constant(item) else tracer.sources[id(item)].origin() if id(item) in tracer.sources else id(item)
             for item in (*args, *kwargs.values())]
    return tracer.wrapped_once(key, real, CachedCall(source, args, dict(kwargs), (*known, *kwargs)))


def resolved(tracer: Tracer, args: Args, kwargs: Keywords) -> tuple[Args, Keywords]:
    """Arguments that are not lazy themselves."""
    return tuple(map(tracer.resolve, args)), {key: tracer.resolve(item) for key, item in kwargs.items()}


METHODS_OF_CLASSES = (types.MethodDescriptorType, types.WrapperDescriptorType)
NATIVE_CALLABLES = (types.BuiltinFunctionType, *METHODS_OF_CLASSES, types.MethodWrapperType, types.ClassMethodDescriptorType)


def call_function(tracer: Tracer, function: types.FunctionType, args: Args, kwargs: Keywords) -> Any:
    """Call a Python function: a rule of its own, a torch operation, or inline."""
    if function.__globals__.get("__name__") == "torch._compile" and hasattr(function, "__wrapped__"):
        function = function.__wrapped__  # hides the function from torch's own compiler
    function = torch_interface.unpatched(function)
    rule = SPECIAL.get(function)
    if rule is not None:
        return ruled(tracer, rule, function, *resolved(tracer, args, kwargs))
    role = torch_interface.classify(function)
    if role is not None:
        return call_torch(tracer, function, role, args, kwargs)
    if torch_interface.is_allowed_in_graph(function):
        return call_allowed(tracer, function, *resolved(tracer, args, kwargs))
    if DISABLED_MARK in function.__dict__ or "_torchdynamo_disable" in function.__dict__:
        raise Break("disabled function", f"`{function.__qualname__}` is disabled")
    module = function.__globals__.get("__name__") or ""
    name = f"{module}.{function.__qualname__}"
    if module.partition(".")[0] in BREAKING_MODULES and not name.startswith(INLINED):
        kind = BREAKING_MODULES[module.partition(".")[0]]
        args, kwargs = resolved(tracer, args, kwargs)
        looks = module == "inspect" or name == "typing.get_type_hints"  # at what functions and classes say of themselves
        asked = any(is_of_users_class(leaf) or isinstance(leaf, Module)
                    or looks and isinstance(leaf, type) and not is_trusted_module(leaf.__module__)
                    for leaf in leaves((*args, *kwargs.values())))
        if kind == "pure" and (id(function) in tracer.fresh or asked):
            return tracer.inline(function, args, kwargs)
        takes_class = "cls" in kwargs or function.__name__ == "register"  # `cls` as `json` takes it
        if kind == "pure" and not takes_class and name not in LOOK_OUTSIDE:
            if looks and args and isinstance(args[0], (types.FunctionType, types.MethodType)):
                guard_signature(tracer, args[0])
                return tracer.made(run_native(tracer, function, args, kwargs))
            if function.__name__ != "signature":
                return call_pure(tracer, function, args, kwargs)
        raise Break(kind if kind != "pure" else "unknown call", f"`{name}` is called")
    closure_rule = CLOSURE_RULES.get((module, function.__code__.co_qualname))
    if closure_rule is not None:
        return closure_rule(tracer, function, *resolved(tracer, args, kwargs))
    untraced = torch_interface.why_untraced(function)
    if untraced is not None:
        raise Break(untraced, f"`{function.__module__}.{function.__qualname__}` is called as it is")
    if module == "torch._tensor" and function.__name__ in torch_interface.TENSOR_METHODS:
        args, kwargs = resolved(tracer, args, kwargs)
        if args and isinstance(args[0], FakeTensor):
            return call_tensor_method(tracer, args[0], function.__name__, args[1:], kwargs)
    return tracer.inline(function, args, kwargs)


def call_allowed(tracer: Tracer, function: types.FunctionType, args: Args, kwargs: Keywords) -> Any:
    """Call a function that somebody vouches for (`torch.compiler.allow_in_graph`): it runs as if it were written in C, and
    outside of the graph where that fails or asks for the number behind a size that varies."""
    label, fixed = f"`{function.__qualname__}`, which is allowed in graphs,", tracer.fixed_numbers()
    refuse_attributes((*args, *kwargs.values()), label)
    try:
        result = call_pure(tracer, function, args, kwargs)
    except RaisedInUserCode as failure:
        raise Break("operation failed", f"{label} raises {type(failure.value).__name__}") from failure
    if tracer.fixed_numbers() != fixed:
        raise Break("unknown call", f"{label} asks for a size that varies")
    if any(isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor) for leaf in leaves(result)):
        raise Break("unknown call", f"{label} gives a tensor that is not its own")
    return result


def call_torch(tracer: Tracer, function: Any, role: str, args: Args, kwargs: Keywords) -> Any:
    """Call a torch function according to its role."""
    name = getattr(function, "__name__", str(function))
    if role == "never":
        raise never_in_graph(torch_interface.NEVER_IN_GRAPH[function], f"torch.{name}", kwargs, function is torch.autograd.grad)
    args, kwargs = resolved(tracer, args, kwargs)
    if role == "state":
        return tracer.graph.state_call(function, args, tracer.location())
    force(tracer, (args, kwargs))
    if isinstance(function, torch.library.CustomOpDef):
        function = function._opoverload
    if role == "query":
        if function in torch_interface.TRANSFORM_QUERIES and tracer.graph.is_transformed():
            raise Break("torch.func transform", f"`{name}` is called inside of a transform")
        answer = run_native(tracer, function, args, kwargs, False)  # some ask whether a torch function mode is active
        if function in torch_interface.GUARDED_QUERIES:
            given = ", ".join([*map(written, args), *(f"{key}={written(item)}" for key, item in kwargs.items())])
            with autocast.as_before(*tracer.autocast):
                tracer.guards.constant(Source(Baked(function, name), f"{{0}}({given})"), function(*args, **kwargs))
        return answer
    if kwargs.get("generator") is not None or any(isinstance(item, torch.Generator) for item in args):
        raise Break("random seed", f"`torch.{name}` draws from an explicit generator")
    if (overload := custom_overload(function, args, kwargs)) is not None:
        function = overload
    elif kwargs.get("out") is not None:
        return call_with_out(tracer, function, args, kwargs)
    kwargs = {key: item for key, item in kwargs.items() if key != "generator"}  # overloads with one take no symbolic sizes
    return tracer.operation("call_function", function, args, torch_interface.with_default_device(function, kwargs))


def custom_overload(function: Any, args: Args, kwargs: Keywords) -> Any:
    """The overload of an operator of somebody else's that is called, `None` for any other function."""
    kinds = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
    if not isinstance(function, kinds) or str(function).startswith(("aten.", "prims.")):
        return None
    if isinstance(function, torch._ops.OpOverloadPacket):
        names, resolve = function.overloads(), torch._C._jit_resolve_packet
        try:
            function = getattr(function, names[0] if len(names) == 1 else resolve(function._qualified_op_name, *args, **kwargs))
        except RuntimeError as failure:
            raise Break("operation failed", f"no overload of `{function}` takes these arguments") from failure
    schema = function._schema
    given, found = (" ".join(str(part.type) for part in parts) for parts in (schema.arguments, schema.returns))
    if "Tensor" in given and found and "Tensor" not in found:
        raise Break("unknown call", f"`{function}` takes tensors and gives none")
    return function


def written(value: Any) -> str:
    """An argument of a query as text that makes it; devices go by their names."""
    return repr(str(value) if isinstance(value, torch.device) else value)


def never_in_graph(kind: str, label: str, kwargs: Keywords, of_intermediates: bool) -> Stop:
    """The graph break for an operation that no graph holds."""
    if kwargs.get("create_graph"):
        return RunEager("a gradient is differentiated again, which compiled graphs do not support", "autograd call")
    stop = Break(kind, f"`{label}` is called")
    stop.of_intermediates = of_intermediates
    return stop


def call_with_out(tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Any:
    """A torch function with `out=`: the function, and a copy into the output where that is the same."""
    out = kwargs["out"]
    refuse_shared_writes("copy_" if is_pointwise(function) else "scatter_", (out, args))
    result = tracer.operation("call_function", function, args, {key: item for key, item in kwargs.items() if key != "out"})
    if not isinstance(out, FakeTensor) or not isinstance(result, FakeTensor):
        raise Break("unsupported argument", "`out=` takes several tensors")
    if result.requires_grad or out.requires_grad or result.shape != out.shape or result.dtype != out.dtype:
        raise Break("unsupported argument", "`out=` takes a tensor that does not fit the result")
    tracer.operation("call_method", "copy_", (out, result))
    return out


def guard_tensor_method(tracer: Tracer, name: str) -> None:
    """Guard that a method of tensors is PyTorch's own; in a graph, one of the user's would be called by what it calls."""
    method = vars(torch.Tensor).get(name)
    if method is not torch_interface.WRITTEN_IN_TENSOR.get(name):
        raise Break("tensor attribute", f"the method `{name}` of tensors was replaced")
    if method is None:
        tracer.absent_in_classes.setdefault(torch.Tensor, set()).add(name)
    else:
        tracer.read_of_library(torch.Tensor, name, method)


def call_tensor_method(tracer: Tracer, tensor: Any, name: str, args: Args, kwargs: Keywords) -> Any:
    """Call a method of a tensor."""
    guard_tensor_method(tracer, name)
    if name in torch_interface.TENSOR_QUERY_METHODS:
        return run_native(tracer, getattr(tensor, name), args, kwargs)
    if name == "requires_grad_" and not tracer.graph.is_transformed():  # which refuse it
        wanted = concrete(args[0] if args else kwargs.get("requires_grad", True))
        if tensor.requires_grad == wanted or becomes_leaf(tracer, tensor, wanted):
            return tensor
    if name == "detach_" and not (args or kwargs) and tracer.graph.detached_in_place(tensor, tracer.location()):
        return tensor
    if name == "__len__":
        return call(tracer, len, (tensor, *args), kwargs)
    if name == "__iter__":
        return iter(tracer.operation("call_method", "unbind", (tensor, 0)))
    known = MISSING if args or kwargs else known_ahead(tracer, tensor, name)
    if known is not MISSING:
        return known
    if name in torch_interface.METHODS_NEVER_IN_GRAPH:
        kind = torch_interface.METHODS_NEVER_IN_GRAPH[name]
        raise never_in_graph(kind, f"Tensor.{name}", kwargs, name in ("retain_grad", "register_hook"))
    if name == "type" and not args and not kwargs:
        return run_native(tracer, tensor.type, (), {}, False)
    force(tracer, (args, kwargs))
    if name == "new" and len(args) == 1 and type(args[0]) is torch.Size:
        name = "new_empty"  # in a graph a size is a tuple, and `new` of a tuple holds its numbers
    if name == "new_tensor" and len(args) == 1 and not isinstance(args[0], FakeTensor):
        return call(tracer, torch.tensor, args, {"dtype": tensor.dtype, "device": tensor.device, **kwargs})
    if kwargs.get("generator") is not None:
        raise Break("random seed", f"`Tensor.{name}` draws from an explicit generator")
    return tracer.operation("call_method", name, (tensor, *args), kwargs)


def call_native(tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Any:
    """Call something written in C."""
    if isinstance(function, METHODS_OF_CLASSES) and args and not isinstance(args[0], Generator):
        if not isinstance(EXAMPLES.get(type(args[0]), args[0]), function.__objclass__):
            return run_native(tracer, function, args, kwargs)  # raises
    rule = SPECIAL.get(function)
    if rule is not None:
        return ruled(tracer, rule, function, args, kwargs)
    owner = getattr(function, "__self__", None)
    name = function.__name__
    if isinstance(function, types.MethodWrapperType):
        method = function.__objclass__.__dict__.get(name)
        if method in SPECIAL:
            return ruled(tracer, SPECIAL[method], method, (owner, *args), kwargs)
    role = torch_interface.classify(function)
    if role is not None:
        return call_torch(tracer, function, role, args, kwargs)
    bound = owner is not None and not isinstance(owner, (types.ModuleType, type))
    if bound or args and isinstance(function, METHODS_OF_CLASSES):
        of, rest = (owner, args) if bound else (args[0], args[1:])
        if is_symbolic(of):
            return call_pure(tracer, function, args, kwargs)
        if isinstance(of, FakeTensor) and name in torch_interface.TENSOR_METHODS:
            return call_tensor_method(tracer, of, name, rest, kwargs)
        method = getattr(native_base(of) or type(of), name, None) or getattr(type(of), name, None)
        if method in SPECIAL:
            return ruled(tracer, SPECIAL[method], method, (of, *rest), kwargs)
        if bound or isinstance(of, NATIVE_OWNERS):
            return call_native_method(tracer, of, function if bound else function.__get__(of), rest, kwargs)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        if (method := inspect.getattr_static(owner, name)) in SPECIAL:
            return ruled(tracer, SPECIAL[method], method, (owner, *args), kwargs)
        raise Break("custom autograd function", f"`{owner.__name__}.{name}` is called")
    if is_pure_native(function):
        return call_pure(tracer, function, args, kwargs)
    raise unknown_call(function)


def ruled(tracer: Tracer, rule: Callable[..., Any], function: Any, args: Args, kwargs: Keywords) -> Any:
    """What the rule of a function gives; arguments that it does not expect are for Python to refuse."""
    if not fits(function, len(args), *kwargs):
        return run_native(tracer, function, args, kwargs)  # raises
    try:
        return rule(tracer, args, kwargs)
    except (TypeError, ValueError, IndexError):
        raise Break("unsupported argument", f"`{native_name(function)[1]}` is called with unusual arguments") from None


def unknown_call(function: Any) -> Break:
    """The graph break for a callable that must not run while tracing."""
    kind, label = native_name(function)
    return Break(kind, f"`{label}` is called")


def call_native_method(tracer: Tracer, owner: Any, function: Any, args: Args, kwargs: Keywords) -> Any:
    """Call a C method of a container, string, number, iterator or exception."""
    kind = type(owner)
    if isinstance(owner, types.GeneratorType) and is_outside(tracer, owner):
        raise Break("iterator", f"`{function.__name__}` of a generator that was made outside")
    if isinstance(owner, BaseException) and is_outside(tracer, owner):
        raise unknown_call(function)
    if not isinstance(owner, NATIVE_OWNERS) and kind not in CONSTANT_TYPES:
        if is_outside(tracer, owner) and kind is not re.Pattern or kind.__module__.partition(".")[0] not in NATIVE_PACKAGES:
            raise unknown_call(function)
    shallow = isinstance(owner, (*CONTAINERS, collections.deque, BaseException)) and function.__name__ not in COMPARING_METHODS
    if not (isinstance(owner, list) and function.__name__ in ("append", "extend")):
        force(tracer, owner, not shallow)
    if function.__name__ in ("__repr__", "__str__", "__format__", "__mod__", "format_map"):
        check_printable(tracer, [owner, *args], symbols=False)
    elif function.__name__ in COMPARING_METHODS:
        refuse_objects(tracer, owner, *args)
    if isinstance(owner, (dict, set, frozenset)) and args:
        if function.__name__ in OF_ONE_KEY:
            args = (settled(tracer, owner, args[0]), *args[1:])
        elif not isinstance(owner, dict):
            refuse_objects(tracer, owner, *args)
    if isinstance(owner, set) and function.__name__ == "pop":
        guard_order(tracer, owner)
    values = tuple(native_argument(tracer, item, not shallow) for item in args)
    keywords = {key: native_argument(tracer, item, not shallow) for key, item in kwargs.items()}
    if isinstance(owner, str):
        values, keywords = spelled_out(values), spelled_out(keywords)
    return tracer.resolve(run_native(tracer, function, values, keywords))


COMPARING_METHODS = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"})
OF_ONE_KEY = frozenset({"add", "discard", "remove", "pop", "move_to_end", "__contains__", "__setitem__", "__delitem__"})


def native_argument(tracer: Tracer, value: Any, deep: bool = True) -> Any:
    """A value as native code may see it: nothing lazy inside, callables wrapped."""
    force(tracer, value, deep)
    if isinstance(value, (types.FunctionType, types.MethodType, TensorMethod)) and deep:
        return Callback(tracer, value)
    return value


LIBRARIES = frozenset({"inspect", "string", "textwrap", "difflib", "ast"})
"""Modules whose functions may run while tracing, though not on their objects from outside, which no guard sees into."""


def call_pure(tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Any:
    """Call a native function that has no side effects, on values it may look into."""
    if any(type(item) is torch.SymFloat and (function not in SYMBOLIC_MATH or has_rounded_numbers(item)) for item in args):
        args = tuple(in_python(tracer, item) for item in args)
    if function in SYMBOLIC_MATH and len(args) == 1 and type(args[0]) in TORCH_NUMBERS:
        return SYMBOLIC_MATH[function](args[0])
    if all(type(item) in OPERANDS for item in args) and any(
            type(item) is SymbolicFloat or type(item) is torch.SymInt and tracer.dynamic.floats for item in args):
        named = functools.partial(function, **spelled_out(kwargs)) if kwargs else function
        return run_native(tracer, computed, (tracer, named, args), {}, False)
    only_reads = isinstance(function, types.FunctionType) or getattr(function, "__module__", None) in ("math", "cmath")
    plain = spelled_out if only_reads else concrete
    values = tuple(plain(native_argument(tracer, item)) for item in args)
    keywords = {key: plain(native_argument(tracer, item)) for key, item in kwargs.items()}
    for item in (*values, *keywords.values()):
        if id(item) in tracer.reals and hasattr(type(item), "__next__"):
            raise Break("unsupported value", "an iterator from outside is used up by native code")
        if id(item) in tracer.reals and type(item).__module__ in LIBRARIES and not never_changes(item):
            raise Break("unsupported value", f"an object of type {type(item).__name__} from outside is read by native code")
        check_safe(item)
    return tracer.resolve(run_native(tracer, function, values, keywords))


def call_numpy(tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Any:
    """NumPy's number made of numbers, a constant. Of anything else, or where NumPy warns, it is made behind the graph."""
    values = tuple(spelled_out(native_argument(tracer, item)) for item in args)
    if not kwargs and all(type(item) in CONSTANT_TYPES for item in leaves(values)):
        with np.errstate(all="raise"), contextlib.suppress(ArithmeticError, TypeError, ValueError):
            result = function(*values)
            if type(result) in NUMPY_NUMBERS:
                return result
    raise unknown_call(function)


def invoke_special(tracer: Tracer, owner: Any, name: str, *args: Any) -> Any:
    """Call a special method that a class defines in Python; MISSING if it defines none."""
    kind = type(owner)
    if is_symbolic(owner):
        return MISSING
    raw, base = class_lookup(tracer, kind, name)
    if raw is MISSING or raw is None or isinstance(owner, FakeTensor) or kind in CONSTANT_TYPES:
        return MISSING
    if isinstance(raw, NEVER_REPLACED) or kind.__module__.startswith("minicompile.capture"):
        return MISSING
    return call(tracer, bind_descriptor(tracer, class_value(tracer, base, name, raw), owner, kind), args, {})


def check_safe(value: Any) -> None:
    """Refuse values on which a native function would run unguarded user code."""
    for leaf in leaves(value):
        kind = type(leaf)
        known = kind in CONSTANT_TYPES or isinstance(leaf, (type, FakeTensor, Callback)) or is_symbolic(leaf)
        if known or not has_python_methods(kind):
            continue
        if kind.__module__ not in ("inspect", "typing"):
            raise Break("user object", f"an object of type {kind.__name__} is passed to a function written in C")


def contains_tensor(value: Any) -> bool:
    """Whether a fake tensor, or an object that may hold one, is in a value."""
    plain = (type, types.BuiltinFunctionType)
    return any(isinstance(leaf, FakeTensor) or type(leaf) not in CONSTANT_TYPES and not isinstance(leaf, plain)
               for leaf in leaves(value))


@functools.cache
def has_python_methods(kind: type) -> bool:
    """Whether a class defines special methods in Python that C code might call."""
    return any(isinstance(getattr(kind, name, None), types.FunctionType) for name in WATCHED_METHODS
               ) and not kind.__module__.startswith("minicompile") and not issubclass(kind, enum.Enum)


WATCHED_METHODS = ("__eq__", "__hash__", "__lt__", "__gt__", "__add__", "__radd__", "__len__", "__iter__", "__getitem__",
                   "__contains__", "__str__", "__repr__", "__format__", "__bool__", "__int__", "__float__", "__index__",
                   "__next__", "__call__", "__abs__", "__round__")


@functools.cache
def hides_its_value(kind: type) -> bool:
    """Whether a class written in C keeps a value that native code reads and no guard can see (`Decimal`, NumPy scalars)."""
    known = (*CONTAINERS, *VALUES, collections.deque, torch.Tensor, enum.Enum, types.CellType, *IDENTITY_TYPES)
    if kind in CONSTANT_TYPES or issubclass(kind, known):
        return False
    methods = [(getattr(kind, name, None), getattr(object, name, None)) for name in VALUE_METHODS]
    native = (types.WrapperDescriptorType, types.MethodDescriptorType)
    return any(isinstance(method, native) and method is not plain for method, plain in methods)


TAKE_NUMBERS = frozenset("""
    insert pop rotate __setitem__ __delitem__ __mul__ __rmul__ __imul__
    enumerate islice combinations combinations_with_replacement permutations product repeat""".split())
"""Native methods of containers, and classes, that ask an object for its number (the methods of texts do, too)."""
KEEPERS, KEEP = (list, dict, collections.deque), {"append": 0, "appendleft": 0, "insert": 1, "setdefault": 1}
"""Containers and their methods that only keep the arguments from some place on."""
VALUE_METHODS = ("__float__", "__int__", "__index__", "__len__", "__getitem__", "__eq__", "__lt__", "__bool__", "__contains__")


def run_native(tracer: Tracer, function: Any, args: Args, kwargs: Keywords, record: bool = True) -> Any:
    """Let Python run a native function; what it raises is raised in the traced program."""
    if function not in SYMBOLIC_ARITHMETIC or any(type(item) in OTHER_NUMBERS for item in args):
        kept = KEEP.get(function.__name__) if isinstance(getattr(function, "__self__", 0), KEEPERS) else None
        args = (*map(concrete, args[:kept]), *(() if kept is None else args[kept:]))
        if function not in (functools.partial, types.SimpleNamespace):  # which only keep them
            kwargs = {name: concrete(item) for name, item in kwargs.items()}
    owner = getattr(function, "__self__", None)
    refuse_own_items(getattr(function, "__name__", ""), owner, args, kwargs)
    for value in (*args, *kwargs.values(), owner):
        if id(value) in tracer.reals and hides_its_value(type(value)):
            raise Break("unsupported value", f"a value of type {type(value).__name__} is read by native code")
        if isinstance(getattr(type(value), "__index__", None), types.FunctionType) and not is_symbolic(value):
            if function.__name__ in TAKE_NUMBERS or isinstance(owner, (str, bytes, slice, re.Pattern, re.Match)):
                raise Break("user object", "an object is asked for its number by a function written in C")
    try:
        with RecordTorch(tracer) if record and contains_tensor((*args, *kwargs.values(), owner)) else contextlib.nullcontext():
            result = function(*args, **kwargs)
        if getattr(function, "__name__", None) == "finditer":  # where its iterator stands cannot be asked
            result = iter(list(result))
        return bool(result) if type(result) is torch.SymBool else result  # a variant for each: Python also adds truths
    except (Control, RecursionError):
        raise
    except torch_interface.DATA_DEPENDENT:
        raise Break("tensor value", "the value of a tensor is needed") from None
    except Exception as error:  # the user's handlers are captured too, and get it
        error.__traceback__ = None
        if type(error) is RuntimeError and any(map(is_symbolic, leaves(args))):
            raise Break("unsupported argument", "an error of PyTorch's would name a size that varies") from None
        if isinstance(error, struct.error) or isinstance(error, TypeError) and any(name in str(error) for name in OURS_IN_ERRORS):
            raise Break("unsupported argument", "a stand-in where only a plain value will do") from None
        raise RaisedInUserCode(error) from None


OURS_IN_ERRORS = ("Sym", "FakeTensor", "Generator", "'Callback'", "minicompile.",
                  "BooleanAtom", "Expr")  # which are words of sympy's
OTHER_NUMBERS = NUMPY_NUMBERS | {complex, decimal.Decimal, fractions.Fraction}  # which PyTorch's numbers do not know
TORCH_NUMBERS = (torch.SymInt, torch.SymFloat)
SYMBOLIC_MATH: dict[Any, Any] = {math.sqrt: torch.sym_sqrt, math.floor: math.floor, math.ceil: math.ceil}
SYMBOLIC_ARITHMETIC: tuple[Any, ...] = tuple(
    getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "lt", "le",
                                         "eq", "ne", "gt", "ge", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod")
) + (operator.getitem, computed, len, bool, builtins.isinstance, max, min, sum, sorted, tuple, list, enumerate, zip, map, filter,
     tuple.__new__, super, torch.broadcast_shapes)


def module_has_hooks(tracer: Tracer, module: Module) -> bool:
    """Whether calling a module does more than calling `forward`; guards what it looked at."""
    if "_initialize_hook" in vars(tracer.reals.get(id(module), module)):
        raise RunEager("a lazy module is initialised", expected=True)
    store = instance_dict(tracer, module)
    if store is None or not all(name in store for name in HOOK_TABLES):
        return True
    of_all = vars(torch.nn.modules.module)
    for name in HOOK_TABLES:
        for table in (slot(tracer, store, name), tracer.load_global(of_all, f"_global{name}")):
            if table:
                return True
            guard_structure(tracer, table)
    return False


def has_backward_hooks(module: Module) -> bool:
    """Whether there are hooks on the gradients of a module, its own or those of all modules."""
    of_all = vars(torch.nn.modules.module)
    return any(getattr(module, name) or of_all[f"_global{name}"] for name in HOOK_TABLES[:2])


PLAIN_CALL = Module.__call__


def is_called_plainly(tracer: Tracer, kind: type) -> bool:
    """Whether the modules of a class have PyTorch's own `__call__`; guards it."""
    caller, base = class_lookup(tracer, kind, "__call__")
    if caller is PLAIN_CALL:
        tracer.read_of_library(base, "__call__", caller)
    return caller is PLAIN_CALL


def called_by_module(tracer: Tracer, module: Module, args: Args) -> tuple[Any, Args]:
    """What PyTorch's own `__call__` of a module runs, and on what: its `forward` if there are no hooks."""
    if isinstance(module, torch.jit.ScriptModule):
        raise Break("unknown call", "a scripted module is called")
    if not module_has_hooks(tracer, module):
        return get_attribute(tracer, module, "forward"), args
    if has_backward_hooks(module):
        raise Break("tensor hook", f"the module {type(module).__name__} has backward hooks")
    return Module._call_impl, (module, *args)


def call_module(tracer: Tracer, module: Module, args: Args, kwargs: Keywords) -> Any:
    """Call an `nn.Module`."""
    if not is_called_plainly(tracer, type(module)):
        caller, base = class_lookup(tracer, type(module), "__call__")
        return call(tracer, class_value(tracer, base, "__call__", caller), (module, *args), kwargs)
    return call(tracer, *called_by_module(tracer, module, args), kwargs)


def call_object(tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Any:
    """Call an instance through its class's `__call__`."""
    kind = type(function)
    role = torch_interface.classify(function)
    if role is not None:
        return call_torch(tracer, function, role, args, kwargs)
    caller, base = class_lookup(tracer, kind, "__call__")
    if caller is MISSING:
        raise Break("unsupported value", "a tensor is called") if isinstance(function, FakeTensor) else RaisedInUserCode(
            TypeError(f"'{kind.__name__}' object is not callable"))
    if isinstance(caller, types.FunctionType) or hasattr(type(caller), COMPILED_MARK):
        if DISABLED_MARK in caller.__dict__:
            raise Break("disabled function", f"`{caller.__qualname__}` is disabled")
        return call(tracer, class_value(tracer, base, "__call__", caller), (function, *args), kwargs)
    if kind is torch.jit.ScriptFunction and function.__qualname__ == "torch.jit.ScriptFunction":  # scripted, not traced
        return call(tracer, get_attribute(tracer, function, "_torchdynamo_inline"), args, kwargs)
    if kind is weakref.ref and not args:
        source = tracer.sources.get(id(function))
        return function() if source is None else tracer.wrap(function(), Source(source, "{0}()"))
    if kind in (operator.attrgetter, operator.itemgetter, operator.methodcaller) and len(args) == 1 and not kwargs:
        return call_getter(tracer, function, args[0])
    if is_numpy_arithmetic(function):
        return call_numpy(tracer, function, args, kwargs)
    if is_pure_native(function) or kind is KEY_WRAPPER:  # which has no hash
        return call_pure(tracer, functools.partial(function) if kind is KEY_WRAPPER else function, args, kwargs)
    raise unknown_call(function)


def call_getter(tracer: Tracer, getter: Any, value: Any) -> Any:
    """What a getter of the module `operator` makes of a value."""
    source = tracer.sources.get(id(getter))
    maker, parts = getter.__reduce__()
    if source is not None:
        if maker is not type(getter):
            raise Break("unknown call", "a `methodcaller` with keyword arguments that was made outside")
        parts = tracer.wrap(parts, Source(source, "{0}.__reduce__()[1]"))
    if isinstance(getter, operator.methodcaller):
        given = (*getattr(maker, "args", ()), *parts)
        return call(tracer, get_attribute(tracer, value, given[0]), given[1:], getattr(maker, "keywords", {}))
    if isinstance(getter, operator.itemgetter):
        found = tuple(call(tracer, operator.getitem, (value, key), {}) for key in parts)
    else:
        found = tuple(functools.reduce(functools.partial(get_attribute, tracer), name.split("."), value) for name in parts)
    return found if len(parts) > 1 else found[0]


KEY_WRAPPER = type(functools.cmp_to_key(max))
