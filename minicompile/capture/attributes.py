"""Attribute access on the symbolic stack: Python's lookup rules, with guards on what comes from outside.

Stores to objects from outside go to stand-ins and are replayed later. Must not call anything by itself: what has to run
(properties, `__getattr__`, descriptors) is called through `tracer.call`.
"""

import collections
import contextvars
import enum
import functools
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from minicompile.capture import torch_interface
from minicompile.capture.break_kinds import Break, RaisedInUserCode
from minicompile.capture.cpython_interface import HEAP_TYPE, IMMUTABLE, MANAGED_DICT
from minicompile.capture.kinds import isinstance
from minicompile.capture.made_leaves import becomes_leaf
from minicompile.capture.remade_classes import FIELD
from minicompile.capture.side_effects import MISSING
from minicompile.capture.source import Attribute, Baked, Item, Source, is_trusted_module
from minicompile.capture.symbolic_size import EXAMPLES, concrete, is_symbolic
from minicompile.capture.tracer import Generator, Tracer
from minicompile.capture.values import (
    CONSTANT_TYPES,
    TensorMethod,
    force,
    guard_absent,
    guard_present,
    is_outside,
    slot,
)

NATIVE_ATTRIBUTE_TYPES = (list, dict, set, frozenset, tuple, str, bytes, int, float, complex, collections.deque)
ORDINARY_READING = (object.__getattribute__, types.SimpleNamespace.__getattribute__, BaseException.__getattribute__,
                    contextvars.ContextVar.__getattribute__, threading.local.__getattribute__)
ORDINARY_WRITING = (object, BaseException, functools.partial, types.SimpleNamespace, types.MethodType, threading.local)
"""The classes of which `__setattr__` and `__delattr__` do what `object`'s do."""
Module = torch.nn.Module


OF_METHODS = (frozenset(vars(types.MethodType)) | frozenset(vars(object))) - {"__doc__"}


def get_attribute(tracer: Tracer, owner: Any, name: str) -> Any:
    """`owner.name`."""
    kind = type(owner)
    if isinstance(owner, torch_interface.FakeTensor):
        return tensor_attribute(tracer, owner, name)
    if isinstance(owner, type):
        return class_attribute(tracer, owner, name)
    if kind is types.ModuleType or isinstance(owner, types.ModuleType):
        return module_attribute(tracer, owner, name)
    if is_symbolic(owner):
        return number_attribute(owner, name)
    if kind is TensorMethod:
        return owner.tensor if name == "__self__" else native_attribute(getattr(ANY_TENSOR, owner.name), name)
    if kind is types.MethodType and name not in OF_METHODS:
        return get_attribute(tracer, owner.__func__, name)
    if kind in (Generator, types.GeneratorType) and name not in GENERATOR_METHODS:
        raise Break("unsupported value", f"the attribute `{name}` of a generator")
    if kind in CONSTANT_TYPES or kind in NATIVE_TYPES:
        return native_attribute(owner, name)
    if kind is super:
        return super_attribute(tracer, owner, name)
    if kind is types.FunctionType:
        return function_attribute(tracer, owner, name)
    return object_attribute(tracer, owner, name)


NATIVE_TYPES = frozenset({
    types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType, types.CodeType, types.CellType,
    types.GeneratorType, types.GenericAlias, types.UnionType,
})
ITEM_METHODS = (dict.__getitem__, dict.get, dict.__setitem__, dict.__delitem__)  # which make attributes of a dictionary's keys
GENERATOR_METHODS = ("send", "throw", "close", "__iter__", "__next__")
ANY_TENSOR = torch.empty(0)


def native_attribute(owner: Any, name: str) -> Any:
    """An attribute read by Python itself."""
    return run_by_python(getattr, owner, name)


def part_of(tracer: Tracer, owner: Any, name: str, value: Any) -> Any:
    """What Python itself keeps for an object, as its `__dict__`: while it is the object's, no other may be made for it."""
    if type(value) is dict and id(owner) in tracer.fresh:
        tracer.owners[id(value)] = owner, name
    return value


def native_part(tracer: Tracer, owner: Any, name: str) -> Any:
    """An attribute read by Python itself, which keeps it for the object unless the user has put it there."""
    value = native_attribute(owner, name)
    return value if name in getattr(owner, "__dict__", ()) else part_of(tracer, owner, name, value)


def run_by_python(function: Any, *args: Any) -> Any:
    """What a native function gives, or the `AttributeError` that it raises, in Python's own words."""
    try:
        return function(*args)
    except AttributeError as error:
        raise RaisedInUserCode(error) from None


def number_attribute(owner: Any, name: str) -> Any:
    """An attribute of a number that varies: a method stays one of it."""
    if name in ("real", "numerator"):
        return owner
    method = getattr(type(EXAMPLES[type(owner)]), name, None)
    written_in_c = isinstance(method, (types.MethodDescriptorType, types.WrapperDescriptorType))
    return types.MethodType(method, owner) if written_in_c else native_attribute(concrete(owner), name)


def class_lookup(tracer: Tracer, kind: type, name: str, mro: tuple[type, ...] | None = None) -> tuple[Any, Any]:
    """The raw class attribute that a lookup along the MRO finds, and the class that has it; MISSING and `None` if none has."""
    tracer.class_orders.add(kind)
    for base in mro or kind.__mro__:
        written = tracer.effects.attributes.get((id(base), name))
        if written is not None:
            return written[1], base
        if name in base.__dict__:
            return base.__dict__[name], base
        if not base.__flags__ & IMMUTABLE and id(base) not in tracer.fresh:
            tracer.absent_in_classes.setdefault(base, set()).add(name)
    return MISSING, None


def defines(tracer: Tracer, kind: type, name: str) -> bool:
    """Whether a class, or one that it is made of, defines a method in Python."""
    return isinstance(class_lookup(tracer, kind, name)[0], types.FunctionType)


def class_value(tracer: Tracer, base: type, name: str, raw: Any) -> Any:
    """A class attribute as a value on the stack: guarded unless the class belongs to a trusted library."""
    key = (id(base), name)
    if key in tracer.effects.attributes or id(base) in tracer.fresh:
        return raw
    if key in tracer.global_values:
        return tracer.global_values[key]
    source = Item(Attribute(Baked(base, base.__name__), "__dict__"), name)
    value: Any = raw
    if isinstance(raw, (property, classmethod, staticmethod)) or hasattr(type(raw), "__get__"):
        if is_trusted_module(base.__module__):
            if not base.__flags__ & IMMUTABLE:
                tracer.read_of_library(base, name, raw)
        elif not isinstance(raw, NEVER_REPLACED):
            tracer.guards.identity(source, raw)
        if id(raw) not in tracer.sources:
            tracer.register(raw, raw, source)
    else:
        value = tracer.wrap(raw, source)
    tracer.global_values[key] = value
    tracer.keep.append(base)
    return value


def python_method(tracer: Tracer, kind: type, name: str) -> types.FunctionType | None:
    """The function by which a class defines a method in Python, guarded; `None` if there is none or it is written in C."""
    raw, base = class_lookup(tracer, kind, name)
    if not isinstance(raw, types.FunctionType):
        return None
    function: types.FunctionType = class_value(tracer, base, name, raw)
    return function


NEVER_REPLACED = (types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType,
                  types.MethodDescriptorType)


def bind_descriptor(tracer: Tracer, raw: Any, owner: Any, kind: type) -> Any:
    """What a class attribute gives when it is read through an instance (`owner`) or the class (`owner` is MISSING)."""
    instance = owner is not MISSING
    if isinstance(raw, types.FunctionType):
        return types.MethodType(raw, owner) if instance else raw
    if isinstance(raw, staticmethod):
        return child(tracer, raw, "__func__")
    if isinstance(raw, classmethod):
        inner = child(tracer, raw, "__func__")
        if sys.version_info < (3, 13) and hasattr(type(inner), "__get__"):  # a property of the class
            return bind_descriptor(tracer, inner, kind, kind)
        return types.MethodType(inner, kind)
    if isinstance(raw, property):
        if not instance:
            return raw
        if raw.fget is None:
            return run_by_python(raw.__get__, owner, kind)
        return tracer.call(child(tracer, raw, "fget"), (owner,))
    if isinstance(raw, functools.cached_property):
        return cached_property(tracer, raw, owner) if instance else raw
    if isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        return read_slot(tracer, raw, owner) if instance else raw
    if isinstance(raw, types.BuiltinFunctionType):
        return raw
    if isinstance(raw, (*NEVER_REPLACED, types.ClassMethodDescriptorType, FIELD)):
        return raw.__get__(owner if instance else None, kind)
    getter = python_method(tracer, type(raw), "__get__")
    if getter is not None:
        return tracer.call(getter, (raw, owner if instance else None, kind))
    if hasattr(type(raw), "__get__"):
        if isinstance(raw, functools._lru_cache_wrapper):
            return types.MethodType(raw, owner) if instance else raw
        if isinstance(raw, functools.partial) and not instance:  # 3.13 warns where it is read through an instance
            return raw
        raise Break("unsupported value", f"a descriptor of type {type(raw).__name__}")
    return raw


def child(tracer: Tracer, holder: Any, name: str) -> Any:
    """An attribute of an immutable holder (a property, a static method), with its source if the holder has one."""
    source = tracer.sources.get(id(holder))
    value = getattr(holder, name)
    if source is None:
        return value
    key = (id(holder), name)
    if key not in tracer.global_values:
        if id(value) not in tracer.known and isinstance(value, types.FunctionType):
            tracer.register(value, value, Attribute(source, name))
        else:
            value = tracer.wrap(value, Attribute(source, name))
        tracer.global_values[key] = value
    return tracer.global_values[key]


def cached_property(tracer: Tracer, raw: Any, owner: Any) -> Any:
    """Compute a `cached_property` and keep it in the instance."""
    value = tracer.call(child(tracer, raw, "func"), (owner,))
    store = instance_dict(tracer, owner)
    if store is not None and raw.attrname:
        dict.__setitem__(store, raw.attrname, value)
    return value


def no_attribute(kind: type | str, name: str, owner: Any) -> RaisedInUserCode:
    """The error for an attribute that there is not."""
    shown = kind if isinstance(kind, str) else kind.__name__
    if isinstance(kind, type) and not kind.__flags__ & HEAP_TYPE and kind.__module__ != "builtins":
        shown = f"{kind.__module__}.{shown}"
    return RaisedInUserCode(AttributeError(f"'{shown}' object has no attribute '{name}'", name=name, obj=owner))


def guard_signature(tracer: Tracer, function: Any) -> None:
    """Guard what `inspect` reads of a function and of those that it wraps."""
    while isinstance(function, (types.FunctionType, types.MethodType)):
        if "__signature__" in function.__dict__:
            raise Break("unsupported value", "a function has a signature of its own")
        force(tracer, [get_attribute(tracer, function, name) for name in ("__defaults__", "__kwdefaults__", "__annotations__")])
        function = get_attribute(tracer, function, "__wrapped__") if "__wrapped__" in function.__dict__ else None


def own_attribute(tracer: Tracer, owner: Any, name: str) -> Any:
    """What a function or a class says of itself; the user's may be made to say something else."""
    if (id(owner), name) in tracer.effects.attributes:
        return tracer.effects.attributes[id(owner), name][1]
    value = getattr(owner, name)
    if id(owner) in tracer.fresh or is_trusted_module(owner.__module__) and not isinstance(value, (dict, tuple)):
        return value
    if id(owner) not in tracer.sources:
        tracer.register(owner, owner, Baked(owner, owner.__qualname__))
    return outside_attribute(tracer, owner, name, value)


def outside_attribute(tracer: Tracer, owner: Any, name: str, real: Any) -> Any:
    """The stand-in for what an object from outside holds in an attribute, made once."""
    source = tracer.sources[id(owner)]
    asks = isinstance(type(owner).__getattribute__, types.FunctionType)  # and may give anything
    place = Source(source, f"object.__getattribute__({{0}}, {name!r})") if asks else Attribute(source, name)
    return tracer.wrapped_once((id(owner), name), real, place)


def stored_attribute(tracer: Tracer, owner: Any, name: str) -> Any:
    """An entry of the instance dictionary, or MISSING and a guard that it is absent."""
    store = instance_dict(tracer, owner)
    if store is None:
        return MISSING
    if dict.__contains__(store, name):
        return slot(tracer, store, name)
    guard_absent(tracer, store, name)
    return MISSING


def read_slot(tracer: Tracer, raw: Any, owner: Any) -> Any:
    """A slot or a C-level attribute of an instance."""
    name = raw.__name__
    if name == "__dict__":
        store = instance_dict(tracer, owner)
        if store is not None:
            return part_of(tracer, owner, name, store)
    written = tracer.effects.attributes.get((id(owner), name))
    if written is not None:
        return written[1]
    if id(owner) not in tracer.sources:
        value = run_by_python(raw.__get__, owner)
        return value if "__slots__" in raw.__objclass__.__dict__ else part_of(tracer, owner, name, value)
    if is_unset(raw, tracer.reals[id(owner)]):
        tracer.guards.test(tracer.sources[id(owner)], "{1}({2}, {0})", (is_unset, raw), f"`{{0}}` has no {name}", "absent")
    return outside_attribute(tracer, owner, name, run_by_python(raw.__get__, tracer.reals[id(owner)]))


def is_unset(slot_of_class: Any, owner: Any) -> bool:
    """Whether a slot of an object holds nothing."""
    try:
        slot_of_class.__get__(owner)
    except AttributeError:
        return True
    return False


def instance_dict(tracer: Tracer, owner: Any) -> dict[str, Any] | None:
    """The instance dictionary, also one of a subclass: a stand-in for an object from outside, the real one for a fresh object."""
    outside, kind = is_outside(tracer, owner), type(owner)
    real = tracer.reals[id(owner)] if outside else owner
    if outside and isinstance(owner, threading.local):
        return outside_attribute(tracer, owner, "__dict__", threading.local.__getattribute__(real, "__dict__"))
    if not type(real).__dictoffset__ and not type(real).__flags__ & MANAGED_DICT:  # a class of C++ may have that flag alone
        return None
    reader, _ = class_lookup(tracer, kind, "__dict__")
    if not isinstance(reader, (types.GetSetDescriptorType, types.MemberDescriptorType)):
        raise Break("unsupported value", f"the class {kind.__name__} hides the dictionaries of its objects")
    store = reader.__get__(real)
    if isinstance(store, collections.OrderedDict):  # which does not see what Python writes there
        raise Break("unsupported value", f"the attributes of an object of type {kind.__name__} are kept in an `OrderedDict`")
    if not isinstance(store, dict):
        return None
    return outside_attribute(tracer, owner, "__dict__", store) if outside else store


def is_data_descriptor(tracer: Tracer, raw: Any) -> bool:
    """Whether a class attribute wins over the instance dictionary; guarded, where its class may be given the methods."""
    kind = type(raw)
    guarded = not kind.__flags__ & IMMUTABLE and any(python_method(tracer, kind, name) for name in ("__set__", "__delete__"))
    return guarded or hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def guard_hidden(tracer: Tracer, base: type | None, name: str, raw: Any) -> None:
    """Guard that a class attribute which an instance's own hides is none that would win over it."""
    if base is not None and id(base) not in tracer.fresh and not is_trusted_module(base.__module__) and (
            (id(base), name) not in tracer.effects.attributes):
        tracer.guards.type(Item(Attribute(Baked(base, base.__name__), "__dict__"), name), raw)


def object_attribute(tracer: Tracer, owner: Any, name: str) -> Any:
    """An attribute of an instance by the rules of `object.__getattribute__`."""
    kind = type(owner)
    getter = python_method(tracer, kind, "__getattribute__")
    if getter is not None:
        return tracer.call(getter, (owner, name))
    if name == "__class__" and class_lookup(tracer, kind, name)[1] is object:
        return kind
    if isinstance(owner, enum.Enum) and not is_outside(tracer, owner):
        tracer.register(owner, owner, Baked(owner, str(owner)))
    if kind.__getattribute__ not in ORDINARY_READING and not isinstance(owner, NATIVE_ATTRIBUTE_TYPES):
        if id(owner) in tracer.sources and not isinstance(owner, functools.partial):
            raise Break("unsupported value", f"attribute `{name}` of an object of type {kind.__name__}")
        return native_part(tracer, owner, name)
    try:
        return generic_attribute(tracer, owner, kind, name)
    except RaisedInUserCode as error:
        if not isinstance(error.value, AttributeError):
            raise
        return fallback_attribute(tracer, owner, kind, name, error)


def generic_attribute(tracer: Tracer, owner: Any, kind: type, name: str) -> Any:
    """Data descriptors, the instance dictionary, then class attributes."""
    if name == "__dict__" and isinstance(owner, threading.local):
        return instance_dict(tracer, owner)
    raw, base = class_lookup(tracer, kind, name)
    wins = raw is not MISSING and is_data_descriptor(tracer, raw) and hasattr(type(raw), "__get__")
    value = MISSING if wins else stored_attribute(tracer, owner, name)
    if value is not MISSING:
        guard_hidden(tracer, base, name, raw)
        return value
    if raw is not MISSING:
        return bind_descriptor(tracer, class_value(tracer, base, name, raw), owner, kind)
    run_by_python(object.__getattribute__, tracer.reals.get(id(owner), owner), name)
    raise no_attribute(kind, name, owner)


def fallback_attribute(tracer: Tracer, owner: Any, kind: type, name: str, error: RaisedInUserCode) -> Any:
    """`__getattr__` of the class, if it has one; a module's parameters, buffers and children."""
    getter, base = class_lookup(tracer, kind, "__getattr__")
    if getter is MISSING:
        raise error
    if getter is Module.__getattr__:
        store = instance_dict(tracer, owner)
        for group in ("_parameters", "_buffers", "_modules"):
            if store is not None and group in store:
                table = slot(tracer, store, group)
                if name in table:
                    return slot(tracer, table, name)
                guard_absent(tracer, table, name)
        raise no_attribute(kind, name, owner)
    if isinstance(getter, types.FunctionType) or isinstance(owner, dict) and getter in ITEM_METHODS:
        return tracer.call(class_value(tracer, base, "__getattr__", getter), (owner, name))
    raise Break("unsupported value", f"`__getattr__` of {kind.__name__}")


def class_attribute(tracer: Tracer, owner: type, name: str) -> Any:
    """An attribute read from a class."""
    if name in ("__mro__", "__bases__", "__class__"):
        tracer.class_orders.add(owner)
        return getattr(owner, name)
    if name in ("__name__", "__qualname__", "__module__", "__doc__"):
        return own_attribute(tracer, owner, name)
    if name == "__dict__":
        raise Break("unsupported value", f"the dictionary of the class {owner.__name__}")
    if name == "__annotations__":
        getattr(owner, name, None)  # which gives a class that has none its own empty ones
    meta = type(owner)
    of_user = not is_trusted_module(meta.__module__)
    if of_user and python_method(tracer, meta, "__getattribute__") is not None:
        raise Break("unsupported value", f"`__getattribute__` of the metaclass {meta.__name__}")
    meta_raw, meta_base = class_lookup(tracer, meta, name)
    raw, base = class_lookup(tracer, owner, name)
    if raw is MISSING or (meta_raw is not MISSING and is_data_descriptor(tracer, meta_raw) and meta is not type):
        if meta_raw is MISSING and of_user and python_method(tracer, meta, "__getattr__") is not None:
            error = AttributeError(f"type object '{owner.__name__}' has no attribute '{name}'", name=name, obj=owner)
            return fallback_attribute(tracer, owner, meta, name, RaisedInUserCode(error))
        if meta_raw is MISSING:
            return native_attribute(owner, name)  # an enum member that only its metaclass reaches, or the error
        if meta_base is type or is_trusted_module(meta_base.__module__):
            return native_attribute(owner, name)
        return bind_descriptor(tracer, class_value(tracer, meta_base, name, meta_raw), owner, meta)
    changes = type(raw) in (bool, int) or (id(base), name) in tracer.effects.attributes
    described = is_trusted_module(base.__module__) and isinstance(getattr(type(raw), "__get__", None), types.FunctionType)
    if (described or is_trusted_module(owner.__module__)) and not (
            changes or isinstance(raw, (types.FunctionType, classmethod, staticmethod))):
        return native_attribute(owner, name)
    return bind_descriptor(tracer, class_value(tracer, base, name, raw), MISSING, owner)


def module_attribute(tracer: Tracer, owner: types.ModuleType, name: str) -> Any:
    """An attribute of a Python module."""
    if name == "__dict__" and not is_trusted_module(owner.__name__):
        raise Break("unsupported value", "a whole namespace is read")
    if name in owner.__dict__:
        return tracer.load_global(owner.__dict__, name)
    if type(owner) is not types.ModuleType and is_trusted_module(owner.__name__):  # such as `torch.backends.cudnn.enabled`
        source = Baked(owner, owner.__name__)
        if not hasattr(owner, name):
            tracer.guards.constant(Source(source, f"hasattr({{0}}, {name!r})"), False)
            return native_attribute(owner, name)
        return tracer.wrap(getattr(owner, name), Attribute(source, name))
    if hasattr(types.ModuleType, name):
        return native_attribute(owner, name)
    tracer.absent_globals.setdefault(id(owner.__dict__), (owner.__dict__, set()))[1].add(name)
    if is_trusted_module(owner.__name__):
        return native_attribute(owner, name)
    kind: Any = type(owner)
    if kind is not types.ModuleType and not isinstance(kind.__getattribute__, types.FunctionType):
        raw, base = class_lookup(tracer, kind, name)
        if raw is not MISSING:
            return bind_descriptor(tracer, class_value(tracer, base, name, raw), owner, kind)
        return fallback_attribute(tracer, owner, kind, name, no_attribute(kind, name, owner))
    if "__getattr__" in owner.__dict__:
        return tracer.call(tracer.load_global(owner.__dict__, "__getattr__"), (name,))
    return native_attribute(owner, name)


def super_attribute(tracer: Tracer, owner: Any, name: str) -> Any:
    """An attribute read through `super()`."""
    start, instance, kind = owner.__thisclass__, owner.__self__, owner.__self_class__
    mro = kind.__mro__
    rest = mro[mro.index(start) + 1 :]
    raw, base = class_lookup(tracer, kind, name, rest)
    if raw is MISSING:
        raise no_attribute("super", name, owner)
    value = class_value(tracer, base, name, raw)
    return bind_descriptor(tracer, value, MISSING if instance is kind else instance, kind)


def function_attribute(tracer: Tracer, owner: types.FunctionType, name: str) -> Any:
    """An attribute of a Python function."""
    if id(owner) in tracer.fresh:
        return native_part(tracer, owner, name)
    if name in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__closure__",
                "__annotations__") or name == "__type_params__" and hasattr(owner, name):
        return own_attribute(tracer, owner, name)
    if name in ("__call__", "__get__", "__class__", "__code__"):
        return getattr(owner, name)
    if id(owner) not in tracer.sources:
        return native_attribute(owner, name)
    value = instance_dict(tracer, owner) if name == "__dict__" else stored_attribute(tracer, owner, name)
    if value is not MISSING:
        return value
    if name == "__wrapped__" or not hasattr(owner, name):
        raise no_attribute("function", name, owner)
    raise Break("unsupported value", f"the attribute `{name}` of a function")


def tensor_attribute(tracer: Tracer, owner: Any, name: str) -> Any:
    """An attribute of a tensor: metadata is known, views are operations, methods wait for their call."""
    written = tracer.effects.attributes.get((id(owner), name))
    if written is not None and name != "data":  # which is another tensor at each look
        return written[1]
    real = tracer.reals.get(id(owner))
    if name == "nbytes":
        return owner.numel() * owner.element_size()
    if name == "is_leaf" and real is not None and real.requires_grad:
        outside_attribute(tracer, owner, name, real.is_leaf)  # which the guard of a tensor's kind does not see
    if name in torch_interface.METADATA_PROPERTIES:
        return getattr(owner, name)
    if name in torch_interface.VIEW_PROPERTIES:
        return tracer.operation("call_function", getattr, (owner, name))
    if name == "data":
        return tracer.graph.data_of(owner, tracer.location())
    if name == "__class__":
        return tensor_class(tracer, owner)
    if name in torch_interface.TENSOR_METHODS:
        return TensorMethod(owner, name)
    if name == "grad" and real is not None:
        return outside_attribute(tracer, owner, name, real.grad)
    if hasattr(torch.Tensor, name):
        raise Break("tensor attribute", f"the attribute `{name}` of a tensor")
    value = MISSING if real is None else stored_attribute(tracer, owner, name)
    if value is MISSING:
        raise no_attribute(tensor_class(tracer, owner).__name__, name, owner)
    return value


def tensor_class(tracer: Tracer, owner: Any) -> type:
    """The class that the user sees of a tensor."""
    real = tracer.reals.get(id(owner))
    return torch.Tensor if real is None else type(real)


def set_attribute(tracer: Tracer, owner: Any, name: str, value: Any) -> None:
    """`owner.name = value`, or deletion if `value` is MISSING."""
    kind = type(owner)
    if isinstance(owner, torch_interface.FakeTensor):
        kept = name == "requires_grad" and owner.is_leaf and value is owner.requires_grad
        if kept or name == "data" and tracer.graph.is_data_of(value, owner):
            return
        fits = FITTING.get(name)
        if hasattr(torch.Tensor, name) and not (fits is not None and fits(tracer, owner, value)):
            raise Break("tensor attribute", f"the attribute `{name}` of a tensor is set")
        if name != "requires_grad":
            write_attribute(tracer, owner, name, value)
        return
    if isinstance(owner, type) or isinstance(owner, types.ModuleType):
        set_on_class(tracer, owner, name, value)
        return
    special = "__setattr__" if value is not MISSING else "__delattr__"
    setter, base = class_lookup(tracer, kind, special)
    if isinstance(setter, types.FunctionType) or isinstance(owner, dict) and setter in ITEM_METHODS:
        args = (owner, name) if value is MISSING else (owner, name, value)
        tracer.call(class_value(tracer, base, special, setter), args)
        return
    if base not in ORDINARY_WRITING or kind is FIELD:
        raise Break("unsupported value", f"the attribute `{name}` of an object of type {kind.__name__} is set")
    generic_set(tracer, owner, name, value)


def write_attribute(tracer: Tracer, owner: Any, name: str, value: Any) -> None:
    """Keep a store to an attribute that no dictionary holds for the end; deletions are left to Python."""
    if value is MISSING:
        raise Break("unsupported value", f"the attribute `{name}` is deleted")
    tracer.effects.attributes[(id(owner), name)] = (owner, value)
    tracer.keep.append(owner)


def becomes_data(tracer: Tracer, owner: Any, value: Any) -> bool:
    """Whether `value` may become the `.data` of a tensor from outside, as it now does for what is traced."""
    known = id(owner) in tracer.reals and isinstance(value, torch_interface.FakeTensor)
    return known and tracer.graph.replace_data(owner, value, tracer.location())


def fits_as_gradient(tracer: Tracer, owner: Any, value: Any) -> bool:
    """Whether `value` may become the `.grad` of a tensor from outside."""
    if id(owner) not in tracer.reals or value is None:
        return id(owner) in tracer.reals
    return isinstance(value, torch_interface.FakeTensor) and value is not owner and value.shape == owner.shape and (
        value.dtype == owner.dtype and value.device == owner.device and tensor_class(tracer, value) is torch.Tensor)


FITTING: dict[str, Callable[[Tracer, Any, Any], bool]] = {
    "grad": fits_as_gradient, "data": becomes_data, "requires_grad": becomes_leaf}
"""The attributes of a tensor that may be set, and whether a value fits."""


def set_on_class(tracer: Tracer, owner: Any, name: str, value: Any) -> None:
    """Store to a class or a Python module."""
    if isinstance(owner, type) and owner.__flags__ & IMMUTABLE:
        try:
            type.__setattr__(owner, name, None)
        except TypeError as error:
            raise RaisedInUserCode(error.with_traceback(None)) from None
    if type(owner) is types.ModuleType and value is not MISSING:
        tracer.effects.globals[(id(owner.__dict__), name)] = (owner.__dict__, value)
        tracer.keep.append(owner.__dict__)
    elif type(owner) is not type and (
            type(owner).__setattr__ is not type.__setattr__ or class_lookup(tracer, type(owner), name)[0] is not MISSING):
        raise Break("unsupported value", f"the attribute `{name}` of {owner.__name__} is set")
    else:
        write_attribute(tracer, owner, name, value)


def generic_set(tracer: Tracer, owner: Any, name: str, value: Any) -> None:
    """`object.__setattr__` and `object.__delattr__`."""
    kind = type(owner)
    raw, base = class_lookup(tracer, kind, name)
    if name == "__class__":
        raise Break("unsupported value", "the class of an object is set")
    if raw is not MISSING and is_data_descriptor(tracer, raw):
        set_through_descriptor(tracer, owner, name, value, class_value(tracer, base, name, raw))
        return
    guard_hidden(tracer, base, name, raw)
    store = instance_dict(tracer, owner)
    if store is None:  # always raises, in the words of this version of Python
        run_by_python(*((object.__delattr__, owner, name) if value is MISSING else (object.__setattr__, owner, name, None)))
        raise AssertionError(f"{kind.__name__} has a dictionary after all")
    if name not in store:
        guard_absent(tracer, store, name)
        if value is MISSING:
            raise no_attribute(kind, name, owner)
    if value is MISSING:
        guard_present(tracer, store, name)
        dict.__delitem__(store, name)
    else:
        dict.__setitem__(store, name, value)


def set_through_descriptor(tracer: Tracer, owner: Any, name: str, value: Any, raw: Any) -> None:
    """Store through a property, a slot or a descriptor written in Python."""
    if isinstance(raw, property):
        if (raw.fset if value is not MISSING else raw.fdel) is None:
            run_by_python(*((raw.__delete__, owner) if value is MISSING else (raw.__set__, owner, None)))
        args = (owner,) if value is MISSING else (owner, value)
        tracer.call(child(tracer, raw, "fset" if args[1:] else "fdel"), args)
    elif isinstance(raw, types.MemberDescriptorType):
        if is_outside(tracer, owner):
            write_attribute(tracer, owner, name, value)
        elif value is MISSING:
            run_by_python(raw.__delete__, owner)
        if value is not MISSING and (not is_outside(tracer, owner) or isinstance(owner, collections.defaultdict)):
            raw.__set__(owner, value)
    else:
        special = "__set__" if value is not MISSING else "__delete__"
        setter, base = class_lookup(tracer, type(raw), special)
        if not isinstance(setter, types.FunctionType):
            if id(owner) in tracer.sources or not isinstance(owner, (BaseException, types.FunctionType)):
                raise Break("unsupported value", f"the attribute `{name}` of {type(owner).__name__} is set")
            setattr(owner, name, value)
            return
        args = (raw, owner) if value is MISSING else (raw, owner, value)
        tracer.call(class_value(tracer, base, special, setter), args)
