"""Classes that `collections.namedtuple` makes inside of a function, another one in each call.

Capture works on a twin, and the generated code makes the class anew. Must not know of other ways to make a class.
"""

import collections
from typing import Any

from minicompile.capture.break_kinds import CLASS_MADE, Break
from minicompile.capture.calls import run_native, special
from minicompile.capture.iteration import native_iterable
from minicompile.capture.kinds import isinstance
from minicompile.capture.side_effects import elements
from minicompile.capture.tracer import Args, Keywords, Tracer
from minicompile.capture.values import force

MAKER: Any = collections.namedtuple


@special(collections.namedtuple)
def rule_namedtuple(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`namedtuple(name, fields)`: a twin of the class, which says that the caller's module made it."""
    names = args[1] if len(args) > 1 else kwargs.pop("field_names", None)
    if not isinstance(names, str):
        force(tracer, names)
        names = tuple(native_iterable(tracer, names)) if isinstance(names, (list, tuple)) else None
    defaults = kwargs.get("defaults")
    if names is None or len(args) not in (1, 2) or not isinstance(defaults, (tuple, list, type(None))):
        raise Break("unsupported value", CLASS_MADE)
    force(tracer, defaults, False)
    keywords = {"module": tracer.frames[-1].globals.get("__name__", "__main__"), **kwargs}
    if defaults is not None:
        keywords["defaults"] = tuple(elements(defaults))
    twin = tracer.made(run_native(tracer, MAKER, (args[0], names), keywords))
    tracer.made(twin.__new__)  # its defaults are the program's
    tracer.arguments[id(twin)] = (args[0], names), keywords
    return twin
