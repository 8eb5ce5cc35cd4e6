"""Classes that a function makes, others in each call: by a `class` statement, by `type`, perhaps decorated by `dataclass`.

Capture works on a twin of the class; where the class outlives the captured code, the generated code makes it anew.
Must not know of `namedtuple`.
"""

import builtins
import contextlib
import dataclasses
import functools
import types
from typing import Any

from minicompile.capture.attributes import class_lookup
from minicompile.capture.break_kinds import CLASS_MADE, Break, RaisedInUserCode
from minicompile.capture.calls import run_native, special
from minicompile.capture.kinds import isinstance
from minicompile.capture.side_effects import MISSING
from minicompile.capture.tracer import Args, Frame, Keywords, Tracer
from minicompile.capture.values import force

OTHER_CLASSES = ("slots", "weakref_slot")
"""Options by which `dataclass` makes another class than the one that it is given."""


@special(builtins.__build_class__)
def rule_class_statement(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """A `class` statement: its body is run over the names of the class."""
    body, name, *bases = args
    if kwargs:
        raise Break("unsupported value", CLASS_MADE)
    frame = tracer.with_cells(Frame(body, {}))
    frame.namespace = frame.variables
    try:
        tracer.run(frame)
    except Break:
        raise Break("unsupported value", CLASS_MADE) from None
    return make_class(tracer, name, tuple(bases), {key: tracer.resolve(value) for key, value in frame.variables.items()})


def is_body_of_class(frame: Frame) -> bool:
    """Whether the variables of a frame are the names of a class that is being made."""
    return frame.namespace is frame.variables


def bind_in_class(frame: Frame, name: str, value: Any) -> None:
    """Bind a name in the body of a class, or delete it."""
    if value is not MISSING:
        frame.variables[name] = value
    elif frame.variables.pop(name, MISSING) is MISSING:
        raise RaisedInUserCode(NameError(f"name '{name}' is not defined", name=name))


def make_class(tracer: Tracer, name: str, bases: tuple[Any, ...], namespace: dict[str, Any]) -> Any:
    """The twin of a class that has no other metaclass than `type`, and that tells nobody that it is made."""
    namespace.setdefault("__module__", tracer.frames[-1].globals.get("__name__", "builtins"))
    plain = all(type(base) is type and class_lookup(tracer, base, "__init_subclass__")[1] is object for base in bases)
    if not plain or "__classdictcell__" in namespace or any(map(is_told_its_name, namespace.values())):
        raise Break("unsupported value", CLASS_MADE)
    twin = tracer.made(run_native(tracer, type, (name, bases, namespace), {}))
    tracer.arguments[id(twin)] = (name, bases, namespace), {}
    return twin


def forget_classes(tracer: Tracer) -> None:
    """Take the twins away from their bases, which would else count them among their subclasses until Python looks for cycles."""
    for twin in tracer.keep:
        if isinstance(twin, type) and len(tracer.arguments.get(id(twin), ((),))[0]) == 3:
            with contextlib.suppress(TypeError):  # of a class of another layout, as are those of the builtin ones
                twin.__bases__ = (Forgotten,)


class Forgotten:
    """The base of the twins that nobody works on any more."""


def is_told_its_name(value: Any) -> bool:
    """Whether a value in the body of a class is told, by a method written in Python, that the class is made."""
    if isinstance(value, dataclasses.Field):
        return is_told_its_name(value.default)
    return isinstance(getattr(type(value), "__set_name__", None), types.FunctionType)


def call_type(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`type(name, bases, names)`."""
    if len(args) != 3 or kwargs or not isinstance(args[0], str) or type(args[2]) is not dict:
        raise Break("unsupported value", CLASS_MADE)
    force(tracer, args[2])
    return make_class(tracer, args[0], args[1], dict(args[2]))


@special(dataclasses.dataclass)
def rule_dataclass(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`dataclass` of a class that the function has made, and of no other."""
    if not args:
        return tracer.made(functools.partial(dataclasses.dataclass, **kwargs))
    twin, made = args[0], tracer.arguments.get(id(args[0]))
    changed = any(owner is twin for owner, _ in tracer.effects.attributes.values())
    if made is None or len(made[0]) != 3 or made[1] or changed or any(kwargs.get(option) for option in OTHER_CLASSES):
        raise Break("unsupported value", CLASS_MADE)
    run_native(tracer, dataclasses.dataclass, (twin,), kwargs)
    tracer.arguments[id(twin)] = made[0], {"dataclass": kwargs}
    for value in vars(twin).values():
        if isinstance(value, types.FunctionType):
            tracer.made(value)
    return twin
