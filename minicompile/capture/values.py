"""Turns a value from outside into its stand-in on the symbolic stack, and records what has to be guarded for that.

Guards are as weak as the stand-in allows: a container is guarded by type until somebody looks at its structure, its
elements stay lazy. Must not run any of the user's code.
"""

import collections
import datetime
import enum
import fractions
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from minicompile.capture.break_kinds import Break
from minicompile.capture.guards import TensorGuard, shown
from minicompile.capture.kinds import isinstance
from minicompile.capture.remade_classes import is_remade, looks_like
from minicompile.capture.side_effects import (
    MISSING,
    Lazy,
    Shadow,
    contents,
    elements,
    entries,
    native_base,
    put,
    same,
    typed,
)
from minicompile.capture.source import (
    HOOK_TABLES,
    MODULE_TABLES,
    Attribute,
    Baked,
    Item,
    Source,
    is_trusted,
    is_trusted_module,
    item_of,
    literal,
    plain_value,
)
from minicompile.capture.symbolic_size import concrete
from minicompile.capture.torch_interface import TENSOR_METHODS, FakeTensor, is_traceable
from minicompile.capture.tracer import Tracer

NUMBER_LIMITS = (torch.finfo, torch.iinfo, np.finfo, np.iinfo)  # objects that tell the limits of a dtype
NUMPY_NUMBERS = frozenset({np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16,
                           np.float32, np.float64, np.bool_})
SIGNATURES = (inspect.Signature, inspect.Parameter)
DATES_AND_FRACTIONS = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, fractions.Fraction)
CONSTANT_TYPES = NUMPY_NUMBERS | {
    *DATES_AND_FRACTIONS,
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range, slice, torch.dtype,
    torch.device, torch.layout, torch.memory_format, torch.Size, torch._C._SDPBackend,
}
IDENTITY_TYPES = (type, types.BuiltinFunctionType, types.ModuleType, types.MethodDescriptorType,
                  types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
                  types.MemberDescriptorType, types.GenericAlias, types.UnionType, types.CodeType, re.Pattern,
                  torch.torch_version.TorchVersion)
VALUES = (str, int, float, bytes)
"""Types of which an instance of a subclass has a value that native code reads; `__eq__` of the type itself compares it."""
TYPING_MODULES = frozenset({"typing", "types"})


class TensorMethod:
    """A method of a tensor that has been read but not called."""

    __slots__ = ("tensor", "name")

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        self.tensor, self.name = tensor, name

    @classmethod
    def of(cls, owner: Any, method: Any) -> "TensorMethod | None":
        """The stand-in for a bound method, if it is one that tensors have."""
        name = getattr(method, "__name__", "")
        return cls(owner, name) if isinstance(owner, FakeTensor) and name in TENSOR_METHODS else None


def wrap(tracer: Tracer, real: Any, source: Source) -> Any:
    """The stand-in for `real`, found at `source`."""
    kind = type(real)
    if kind in CONSTANT_TYPES and kind not in DATES_AND_FRACTIONS:
        return wrap_constant(tracer, real, source)
    known = tracer.known.get(id(real))
    if known is not None:
        stand_in, first = known
        if first is not source and not is_trusted(source):
            tracer.guards.same(source, first)
        return stand_in
    rule = RULES.get(kind)
    if rule is not None:
        return rule(tracer, real, source)
    for base, base_rule in BASE_RULES:
        if isinstance(real, base):
            return base_rule(tracer, real, source)
    return wrap_object(tracer, real, source)


def wrap_constant(tracer: Tracer, real: Any, source: Source) -> Any:
    """An immutable value: guarded to be equal, unless it is a number that is known to vary."""
    if type(real) in (int, float) and tracer.dynamic is not None:
        symbol = tracer.dynamic.number(tracer, real, source)
        if symbol is not None:
            return symbol
    if type(real) in NUMPY_NUMBERS and tracer.dynamic.varies((source.origin(), "NumPy"), repr(real)):
        raise Break("NumPy", f"`{source.words()}` is a NumPy number that varies")
    tracer.guards.constant(source, real)
    return real


def wrap_value(tracer: Tracer, real: Any, source: Source) -> Any:
    """A date or a fraction: guarded to say the same."""
    tracer.guards.constant(source, real)
    return tracer.register(real, real, source)


def wrap_identity(tracer: Tracer, real: Any, source: Source) -> Any:
    """A class, module or builtin: guarded to be the same object, or to look like it if a function makes it in each call."""
    if isinstance(real, type) and is_remade(real):
        tracer.guards.test(source, "{1}({0}, {2})", (looks_like, real), f"`{{0}}` looks like the class {real.__name__}", "type")
        for _, other in [one for one in tracer.known.values() if isinstance(one[0], type) and is_remade(one[0])]:
            tracer.guards.different(source, other)
    elif not is_trusted(source):
        tracer.guards.identity(source, real)
    return tracer.register(real, real, source)


def never_changes(signature: Any) -> bool:
    """Whether it is a signature, or a parameter of one, whose defaults are constants."""
    return type(signature) in SIGNATURES and all(type(part.default) in CONSTANT_TYPES for part in parts_of(signature)
                                                 if part.default is not part.empty)


def parts_of(signature: Any) -> tuple[Any, ...]:
    """The parameters of a signature; a parameter is its own part."""
    return tuple(signature.parameters.values()) if type(signature) is inspect.Signature else (signature,)


def says_the_same(signature: Any, first: Any) -> bool:
    """Whether nothing but its identity tells a signature, or a parameter, from another one that never changes."""
    if signature is first:
        return True
    if type(signature) is not type(first) or not never_changes(signature):
        return False
    annotations = [[part.annotation for part in parts_of(one)] + [getattr(one, "return_annotation", None)]
                   for one in (signature, first)]
    defaults = [[(part.name, part.kind, type(part.default), repr(part.default)) for part in parts_of(one)]
                for one in (signature, first)]
    return defaults[0] == defaults[1] and all(
        one is other or type(one) is type(other) is str and one == other for one, other in zip(*annotations, strict=True))


def wrap_signature(tracer: Tracer, real: Any, source: Source) -> Any:
    """A signature or a parameter: guarded to say the same, if what it holds cannot change. `inspect` makes new ones each time."""
    if not never_changes(real):
        return wrap_object(tracer, real, source)
    if not is_trusted(source):
        tracer.guards.test(source, "{1}({0}, {2})", (says_the_same, real), f"`{{0}}` says the same {type(real).__name__}",
                           "identity")
    return tracer.register(real, real, source)


def wrap_function(tracer: Tracer, real: Any, source: Source) -> Any:
    """A Python function: the same object where it is named globally, the same code where it is passed around."""
    if not is_trusted(source):
        parent = source.parent
        if isinstance(parent, Baked) or (isinstance(parent, Attribute) and isinstance(parent.parent, Baked)):
            tracer.guards.identity(source, real)
        else:
            tracer.guards.test(source, "type({0}) is {3} and {0}.__code__ is {1} and {0}.__globals__ is {2}",
                               (real.__code__, real.__globals__, types.FunctionType),
                               f"`{{0}}` is the function {real.__qualname__}", "identity")
    return tracer.register(real, real, source)


PARTS: dict[Any, tuple[str, ...]] = {types.MethodType: ("__func__", "__self__"), super: ("__thisclass__", "__self__"),
                                     slice: ("start", "stop", "step"), property: ("fget", "fset", "fdel", "__doc__"),
                                     **dict.fromkeys((staticmethod, classmethod), ("__func__",))}
"""The attributes of which instances of a class are made, in the order in which it takes them."""


def wrap_made_of_parts(tracer: Tracer, real: Any, source: Source) -> Any:
    """A bound method, or what `super()` gave: its parts each by their own rules."""
    tracer.guards.type(source, real)
    parts = [wrap(tracer, getattr(real, name), Attribute(source, name)) for name in PARTS[type(real)]]
    return tracer.register(TensorMethod.of(parts[1], real) or type(real)(*parts), real, source)


def wrap_builtin(tracer: Tracer, real: Any, source: Source) -> Any:
    """A builtin function, or a builtin or special method written in C that is bound to an object from outside."""
    owner, special = real.__self__, getattr(real, "__objclass__", None)
    known = owner is None or isinstance(owner, (types.ModuleType, type)) or type(owner).__module__ == "pybind11_builtins"
    if known and special is None:
        return wrap_identity(tracer, real, source)
    tracer.guards.test(source, "type({0}) is {1} and {0}.__name__ == {2} and getattr({0}, '__objclass__', None) is {3}",
                       (type(real), real.__name__, special), f"`{{0}}` is the method {real.__name__}", "identity")
    owner = concrete(wrap(tracer, owner, Attribute(source, "__self__")))
    native = overruled(real) if special is None else None if owner is None else vars(special)[real.__name__]
    made = getattr(owner, real.__name__) if native is None else native.__get__(owner)
    return tracer.register(TensorMethod.of(owner, made) or made, real, source)


def overruled(method: types.BuiltinFunctionType) -> types.MethodDescriptorType | None:
    """The method behind a bound one written in C, if the owner's class has another one of its name (`super().append`)."""
    name, classes = method.__name__, type(method.__self__).__mro__
    found = [vars(base)[name] for base in classes if name in vars(base)]
    native = next((one for one in found if isinstance(one, types.MethodDescriptorType)), None)
    return None if native is None or native is found[0] else native


def wrap_tensor(tracer: Tracer, real: torch.Tensor, source: Source) -> Any:
    """A tensor: a fake one that becomes a graph input when it is used."""
    reason = is_traceable(real)
    if reason is not None:
        kind = "sparse tensor" if "sparse" in reason else "tensor subclass" if "subclass" in reason else "unsupported tensor"
        raise Break(kind, f"`{source.words()}` is {reason}")
    fake, sizes, strides = tracer.dynamic.fake_tensor(tracer, real, source)
    tracer.guards.items.append(TensorGuard(source, real, sizes, strides, location=tracer.location()))
    in_buffers = isinstance(source.parent, Item) and source.parent.key == "_buffers"
    kind = "parameter" if isinstance(real, torch.nn.Parameter) else "buffer" if in_buffers else "tensor"
    tracer.graph.add_input(fake, source, kind, real)
    return tracer.register(fake, real, source)


def wrap_tuple(tracer: Tracer, real: tuple[Any, ...], source: Source) -> Any:
    """A tuple or named tuple: type, length and every element."""
    count = tuple.__len__(real)
    measure = "len" if type(real).__len__ is tuple.__len__ else "tuple.__len__"
    same_type = "type({0}) is {1} and "
    if is_remade(type(real)):
        wrap(tracer, type(real), Source(source, "type({0})"))
        same_type = ""
    tracer.guards.test(source, f"{same_type}{measure}({{0}}) == {{2}}", (type(real), count),
                       f"`{{0}}` is a {type(real).__name__} of {count}", "structure", count)
    items = [wrap(tracer, item, item_of(source, real, position)) for position, item in enumerate(tuple.__iter__(real))]
    if any(item is not original for item, original in zip(items, real, strict=True)):
        # Struct sequences (`torch.return_types`) do not let `tuple` make them.
        stand_in = type(real)(items) if hasattr(type(real), "n_sequence_fields") else tuple.__new__(type(real), items)
    else:
        stand_in = real
    return tracer.register(stand_in, real, source)


def wrap_list(tracer: Tracer, real: list[Any], source: Source) -> Any:
    """A list or a subclass of it."""
    tracer.guards.type(source, real)
    copy = list.__new__(type(real))
    list.extend(copy, [Lazy(item_of(source, real, position), item) for position, item in enumerate(list.__iter__(real))])
    return shadowed(tracer, real, source, copy)


def wrap_deque(tracer: Tracer, real: collections.deque[Any], source: Source) -> Any:
    """A deque: guarded whole, since every use reads its ends."""
    held, measure = elements(real), len if type(real) is collections.deque else collections.deque.__len__
    tracer.guards.test(source, "type({0}) is {1} and {4}({0}) == {2} and {0}.maxlen == {3}",
                       (type(real), len(held), real.maxlen, measure),
                       f"`{{0}}` is a deque of {len(held)}", "structure", len(held))
    items = [wrap(tracer, item, item_of(source, real, position)) for position, item in enumerate(held)]
    copy = collections.deque.__new__(type(real))
    collections.deque.__init__(copy, items, real.maxlen)
    return shadowed(tracer, real, source, copy, True)


def is_structural(source: Source) -> bool:
    """Whether a source is an instance dictionary or a table of a module, whose types do not change."""
    if isinstance(source, Attribute):
        return source.name == "__dict__"
    tables = (*MODULE_TABLES, *HOOK_TABLES)
    return isinstance(source, Item) and source.key in tables and source.parent is not None and is_structural(source.parent)


def is_plain_key(key: Any) -> bool:
    """Whether a dictionary key can be written into generated code."""
    return literal(key) is not None and key == key or isinstance(key, type) and not is_remade(key) or isinstance(key, (
        enum.Enum, torch.dtype, torch.device, types.FunctionType, types.ModuleType, types.BuiltinFunctionType))


def wrap_dict(tracer: Tracer, real: dict[Any, Any], source: Source) -> Any:
    """A dictionary or a subclass of it: values stay lazy, keys are guarded when somebody looks at them."""
    if dict.__contains__(real, "__builtins__"):
        raise Break("unsupported value", "a whole namespace is read")  # its names are read and written one by one
    if not is_structural(source):
        tracer.guards.type(source, real)
    copy = new_dict(tracer, real, source)
    hashed: set[type] = set()
    plain, keys, values = True, Source(source, "list({0}.keys())"), Source(source, "list({0}.values())")
    for position, (key, value) in enumerate(entries(real)):
        if is_plain_key(key):
            put(copy, key, Lazy(item_of(source, real, key), value))
        else:
            plain = False
            stand_in = concrete(wrap(tracer, key, Source(keys, f"{{0}}[{position}]")))
            if type(key) not in hashed:
                hashed.add(type(key))
                check_hashes(tracer, (stand_in,))
            put(copy, stand_in, Lazy(Source(values, f"{{0}}[{position}]"), value))
    result = shadowed(tracer, real, source, copy)
    if not plain:
        tracer.guards.test(source, "len({0}) == {1}", (len(real),), f"`{{0}}` has {len(real)} entries", "structure", len(real))
        tracer.effects.shadows[id(result)].structure_guarded = True
    return result


def new_dict(tracer: Tracer, real: dict[Any, Any], source: Source) -> Any:
    """An empty dictionary of the type of `real`."""
    kind = type(real)
    if isinstance(real, collections.OrderedDict):
        return collections.OrderedDict.__new__(kind)
    if isinstance(real, collections.defaultdict):
        copy = collections.defaultdict.__new__(kind)
        copy.default_factory = wrap(tracer, real.default_factory, Attribute(source, "default_factory"))
        return copy
    return dict.__new__(kind)


def hash_by_looking(tracer: Tracer, key: Any) -> Any:
    """The hash of an object of the user's; where it writes anything, native code must not ask for it while tracing."""
    before = tracer.effects.written()
    answer = tracer.call_from_native(hash, (key,))
    if before != tracer.effects.written():
        raise Break("user object", f"hashing an object of type {type(key).__name__} changes something")
    return answer


def check_hashes(tracer: Tracer, keys: Iterable[Any]) -> None:
    """Have one key of each class of the user's hashed by the tracer, before native code hashes them all."""
    for kind, key in {type(key): key for key in keys}.items():
        if isinstance(key, (tuple, frozenset)) and not isinstance(kind.__hash__, types.FunctionType):
            check_hashes(tracer, elements(key))
        elif isinstance(kind.__hash__, types.FunctionType) and not (
                isinstance(key, (torch.Tensor, enum.Enum)) or is_trusted_module(kind.__module__)):
            hash_by_looking(tracer, key)


def wrap_set(tracer: Tracer, real: set[Any], source: Source) -> Any:
    """A set: of constants, or of objects in the order in which it gives them."""
    kind, held, text = type(real), elements(real), text_of_elements(real)
    if not all(map(is_plain_key, held)):
        tracer.guards.test(source, f"type({{0}}) is {{1}} and len({text}) == {{2}}", (kind, len(held)),
                           f"`{{0}}` is a {kind.__name__} of {len(held)}", "structure", len(held))
        items: Any = [concrete(wrap(tracer, item, Source(source, f"list({text})[{place}]"))) for place, item in enumerate(held)]
        check_hashes(tracer, items)
        if isinstance(real, frozenset):
            return tracer.register(frozenset.__new__(kind, items), real, source)
    else:
        same = "{0}" if kind in (set, frozenset) else f"set({text})"
        tracer.guards.test(source, f"type({{0}}) is {{1}} and {same} == {{2}}", (kind, set(held)),
                           "`{0}` has the same elements", "structure", set(held))
        if not all(isinstance(item, str) for item in held):
            tracer.guards.test(source, f"set(map({{1}}, {text})) == {{2}}", (typed, set(map(typed, held))),
                               "`{0}` has elements of the same types", "structure", set(held))
        if isinstance(real, frozenset):
            return tracer.register(real, real, source)
        items = real
    copy = set.__new__(kind)
    set.update(copy, items)
    return shadowed(tracer, real, source, copy, True)


def text_of_elements(real: Any) -> str:
    """The text of a guard that reads the elements of a set, whatever methods its class overrides."""
    return "{0}" if type(real) in (set, frozenset) else f"list({native_base(real).__name__}.__iter__({{0}}))"


def wrap_cell(tracer: Tracer, real: types.CellType, source: Source) -> Any:
    """A closure cell; what it holds stays lazy."""
    try:
        copy = types.CellType(Lazy(Attribute(source, "cell_contents"), real.cell_contents))
    except ValueError:
        copy = types.CellType()
        tracer.guards.test(source, "is_empty_cell({0})", (), "`{0}` is not assigned yet", "constant")
    return shadowed(tracer, real, source, copy, True)


def shadowed(tracer: Tracer, real: Any, source: Source, copy: Any, structure_guarded: bool = False) -> Any:
    """Register a stand-in container."""
    shadow = Shadow(real, source, copy, contents(copy))
    shadow.structure_guarded = structure_guarded
    tracer.effects.add(shadow)
    return tracer.register(copy, real, source)


def wrap_object(tracer: Tracer, real: Any, source: Source) -> Any:
    """Any other object stands for itself; its type is guarded, and its attributes when they are read."""
    if isinstance(real, enum.Enum) or type(real).__module__ in TYPING_MODULES:
        return wrap_identity(tracer, real, source)
    base = next((base for base in VALUES if isinstance(real, base)), None)
    if base is not None:
        tracer.guards.test(source, "type({0}) is {1} and {2}({0}, {3})", (type(real), base.__eq__, plain_value(real)),
                           f"`{{0}}` is the same {type(real).__name__}", "constant")
    elif not (is_trusted(source) and not hasattr(real, "__dict__")):
        tracer.guards.type(source, real)
    return tracer.register(real, real, source)


def wrap_partial(tracer: Tracer, real: functools.partial[Any], source: Source) -> Any:
    """A partial call: the callable and the arguments by their own rules."""
    tracer.guards.type(source, real)
    names = ("func", "args", "keywords")
    function, args, keywords = (wrap(tracer, getattr(real, name), Attribute(source, name)) for name in names)
    force(tracer, keywords, False)
    copy = functools.partial(function)
    copy.__setstate__((function, args, keywords, None))  # which keeps them as they are, for whoever changes them
    return tracer.register(copy, real, source)


def guard_structure(tracer: Tracer, value: Any) -> None:
    """Guard the length of a list or the keys of a dictionary from outside, once."""
    shadow = tracer.effects.shadows.get(id(value))
    if shadow is None or shadow.structure_guarded:
        return
    shadow.structure_guarded = True
    real, source = shadow.real, shadow.source
    if isinstance(real, list):
        count = list.__len__(real)
        text = "len({0}) == {1}" if type(real) is list else "list.__len__({0}) == {1}"
        tracer.guards.test(source, text, (count,), f"`{{0}}` has {count} element{'' if count == 1 else 's'}", "structure", count)
    elif isinstance(real, dict):
        keys = [key for key, _ in entries(real)]
        plain = type(real).__len__ is dict.__len__ and type(real).__iter__ in PLAIN_ITERATION
        if not keys:
            text = "not {0}" if plain else "dict.__len__({0}) == 0"
            tracer.guards.test(source, text, (), "`{0}` is empty", "structure", keys)
        else:
            found = "{0}" if plain else "dict.keys({0})"
            words = f"`{{0}}` has the keys {shown(keys)}"[:200]
            tracer.guards.test(source, f"list({found}) == {{1}}", (keys,), words, "structure", keys)
            if not all(isinstance(key, str) for key in keys):
                tracer.guards.test(source, f"list(map({{1}}, {found})) == {{2}}", (typed, list(map(typed, keys))),
                                   "`{0}` has keys of the same types", "structure", keys)


def grown(tracer: Tracer, value: Any) -> int | None:
    """How many elements a plain list from outside has got at its end, or `None` if its length is guarded, or of another value."""
    shadow = tracer.effects.shadows.get(id(value))
    if shadow is None or shadow.structure_guarded or type(shadow.real) is not list or tracer.dynamic is None:
        return None
    more = len(value) - len(shadow.before)
    return more if more >= 0 and all(map(same, value, shadow.before)) else None


def outer_length(tracer: Tracer, value: Any) -> Any:
    """The length of such a list outside as a number that varies, or `None` until it has been seen to."""
    shadow = tracer.effects.shadows[id(value)]
    source, count = Source(shadow.source, "len({0})", "len({0})"), len(shadow.before)
    varies = tracer.dynamic.varies((source.origin(), "number"), count)
    return tracer.wrapped_once((id(value), "len"), count, source) if varies else None


def length(tracer: Tracer, value: Any) -> Any:
    """`len(value)` of a list or dictionary without a `__len__` of its own."""
    more = grown(tracer, value)
    number = None if more is None else outer_length(tracer, value)
    if number is None:
        guard_structure(tracer, value)
        return native_base(value).__len__(value)
    return number + more


def guard_filled(tracer: Tracer, value: Any) -> None:
    """Guard whether a list or dictionary has any elements."""
    more = grown(tracer, value)
    if not more and (more is None or not value):
        guard_structure(tracer, value)
    elif not more and tracer.global_values.setdefault((id(value), "filled"), MISSING) is MISSING:
        tracer.global_values[id(value), "filled"] = True
        tracer.guards.test(tracer.sources[id(value)], "{0}", (), "`{0}` has elements", "structure")


def item_from_end(tracer: Tracer, value: list[Any], key: int) -> Any:
    """`value[key]` for a negative key and a list from outside whose length varies, else `MISSING`."""
    more = grown(tracer, value) if key < 0 else None
    if more is None or -key > len(value) or -key > more and outer_length(tracer, value) is None:
        return MISSING
    if -key <= more:
        return list.__getitem__(value, key)
    place, shadow = key + more, tracer.effects.shadows[id(value)]
    return tracer.wrapped_once((id(value), f"[{place}]"), shadow.real[place], item_of(shadow.source, shadow.real, place))


def guard_order(tracer: Tracer, value: Any) -> None:
    """Guard in which order a set from outside gives its elements; a copy of it need not have the same order."""
    real = tracer.reals.get(id(value))
    if real is not None:
        order = elements(real)
        if list(map(id, order)) != [id(tracer.reals.get(id(item), item)) for item in elements(value)]:
            raise Break("unsupported value", "the order of a set that was changed")
        if all(map(is_plain_key, order)):  # others are told by their places
            tracer.guards.test(tracer.sources[id(value)], f"list({text_of_elements(real)}) == {{1}}", (order,),
                               "`{0}` has the same order", "structure", order)


PLAIN_ITERATION = (dict.__iter__, collections.OrderedDict.__iter__)


def guard_absent(tracer: Tracer, value: Any, key: Any) -> None:
    """Guard that a dictionary from outside has no such key."""
    shadow = tracer.effects.shadows.get(id(value))
    if shadow is not None and not shadow.structure_guarded:
        if not is_plain_key(key):
            guard_structure(tracer, value)
        elif key not in shadow.real:
            shadow.absent.add(key)


def guard_present(tracer: Tracer, value: Any, key: Any) -> None:
    """Guard that a dictionary from outside has a key whose value is not read."""
    shadow = tracer.effects.shadows.get(id(value))
    if shadow is not None and not shadow.structure_guarded and key in shadow.real and key not in shadow.present:
        shadow.present.add(key)
        tracer.guards.test(shadow.source, "{1} in {0}", (key,), f"`{{0}}` has the key {shown(key)[:40]}", "structure", key)


def slot(tracer: Tracer, container: Any, key: Any) -> Any:
    """The element of a list or dictionary, no longer lazy."""
    base: Any = dict if isinstance(container, dict) else list
    shadow = tracer.effects.shadows.get(id(container))
    if base is list and shadow is not None and key >= len(shadow.before):
        guard_structure(tracer, container)
    value = base.__getitem__(container, key)
    if type(value) is Lazy:
        value = tracer.resolve(value)
        base.__setitem__(container, key, value)
    return value


def force(tracer: Tracer, value: Any, deep: bool = True, seen: set[int] | None = None) -> None:
    """Make the elements of a container not lazy and guard its structure; with `deep`, of all containers inside."""
    kind = type(value)
    if kind in CONSTANT_TYPES or not isinstance(value, (list, dict, tuple, collections.deque, set)):
        return
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    guard_structure(tracer, value)
    items: Any
    if isinstance(value, list):
        items = [slot(tracer, value, position) for position in range(list.__len__(value))]
    elif isinstance(value, dict):
        items = [slot(tracer, value, key) for key in list(dict.keys(value))]
        items.extend(dict.keys(value))
    else:
        items = elements(value)
    if deep:
        for item in items:
            force(tracer, item, True, seen)


def is_outside(tracer: Tracer, value: Any) -> bool:
    """Whether a value is an object of the user's that must not be changed while tracing."""
    return id(value) in tracer.reals


Rule = Callable[[Tracer, Any, Source], Any]
RULES: dict[type, Rule] = {
    torch.Tensor: wrap_tensor, torch.nn.Parameter: wrap_tensor, types.FunctionType: wrap_function,
    **dict.fromkeys((types.MethodType, super), wrap_made_of_parts), types.BuiltinFunctionType: wrap_builtin,
    types.MethodWrapperType: wrap_builtin,
    tuple: wrap_tuple, list: wrap_list,
    dict: wrap_dict, set: wrap_set, frozenset: wrap_set, collections.deque: wrap_deque, types.CellType: wrap_cell,
    functools.partial: wrap_partial, type(MISSING): wrap_object,
    **dict.fromkeys(DATES_AND_FRACTIONS, wrap_value), **dict.fromkeys(SIGNATURES, wrap_signature),
}
BASE_RULES: tuple[tuple[Any, Rule], ...] = (
    (torch.Tensor, wrap_tensor), (IDENTITY_TYPES, wrap_identity), (enum.Enum, wrap_identity), (tuple, wrap_tuple),
    (list, wrap_list), (dict, wrap_dict), ((set, frozenset), wrap_set), (collections.deque, wrap_deque),
)
