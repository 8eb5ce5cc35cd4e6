"""Objects that are no tensors and whose classes override torch functions (`__torch_function__`).

PyTorch's own dispatcher decides which class is asked, in which order and for which function: it is given stand-ins, which
pass the question on to the traced class. This module must not know any torch function.
"""

from __future__ import annotations

import types
from typing import Any

from minicompile.capture.attributes import get_attribute
from minicompile.capture.break_kinds import Break, RaisedInUserCode
from minicompile.capture.calls import call
from minicompile.capture.kinds import isinstance
from minicompile.capture.texts import leaves
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import Args, Keywords, Tracer, overrides_torch


class StandIn:
    """An object as PyTorch's dispatcher meets it; each class of such objects has a subclass of its own."""

    tracer: Tracer
    kind: type

    def __init__(self, original: Any) -> None:
        self.original = original

    @classmethod
    def __torch_function__(cls, function: Any, kinds: tuple[type[StandIn], ...], *arguments: Any) -> Any:
        """Ask the class that this one stands for."""
        if isinstance(function, types.FunctionType) and any(isinstance(leaf, FakeTensor) for leaf in leaves(arguments)):
            raise Break("unsupported argument", f"`{function.__name__}` asks the class of a tensor, too")
        handler = get_attribute(cls.tracer, cls.kind, "__torch_function__")
        return call(cls.tracer, handler, (function, tuple(each.kind for each in kinds), *map(originals, arguments)), {})


def call_overridden(tracer: Tracer, target: Any, args: Args, kwargs: Keywords) -> Any:
    """What the classes of some arguments make of a torch function, operator or method."""
    known: dict[type, type[StandIn]] = {}

    def replaced(value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(map(replaced, value))
        if not overrides_torch(value):
            return value
        kind = type(value)
        if any(issubclass(kind, other) or issubclass(other, kind) for other in known if other is not kind):
            raise Break("unsupported argument", f"classes related to {kind.__name__} override torch functions")
        if kind not in known:
            known[kind] = type(kind.__name__, (StandIn,), {"tracer": tracer, "kind": kind})
        return known[kind](value)

    try:
        items, keywords = replaced(args), {name: replaced(value) for name, value in kwargs.items()}
        return getattr(items[0], target)(*items[1:], **keywords) if isinstance(target, str) else target(*items, **keywords)
    except TypeError:  # every class declines
        raise Break("unsupported argument", f"no argument's class implements `{target}`") from None
    except RaisedInUserCode as error:
        if isinstance(error.value, TypeError):  # which an operator takes for an answer
            raise Break("unsupported argument", f"`{target}` is refused by an argument's class") from None
        raise


def originals(value: Any) -> Any:
    """A value with the objects that the stand-ins in it stand for."""
    if type(value) in (list, tuple):
        return type(value)(map(originals, value))
    if type(value) is dict:
        return {name: originals(item) for name, item in value.items()}
    return value.original if isinstance(value, StandIn) else value
