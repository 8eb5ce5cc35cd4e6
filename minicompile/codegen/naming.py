"""Names for buffers, kernels and variables, from the user's own words where there are any.

This module must not know what the names are used for.
"""

import builtins
import itertools
import keyword
import re
from collections.abc import Iterable

from minicompile.codegen.device_sources import DEVICE_FUNCTIONS
from minicompile.codegen.index_text import symbols_of
from minicompile.ir.index import Symbol
from minicompile.ir.loops import ExternKernel, LoweredGraph, Origin
from minicompile.ir.schedule import Schedule

RESERVED = frozenset({
    "torch", "tl", "triton", "libdevice", "call", "inputs", "program", "math", "time", "sys", "CONSTANTS", "Launcher",
    "reinterpret", "empty_strided", "with_layout", "main", "reference", "make_inputs",
    *DEVICE_FUNCTIONS, *keyword.kwlist, *dir(builtins),
})  # fmt: skip


class Namer:
    """Hands out names that are identifiers, free, and close to what was asked for."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken) | RESERVED
        self._last: dict[str, int] = {}  # the highest number that a name has; lower ones are taken until some are released

    def fresh(self, wish: str) -> str:
        """`wish`, or `wish_1`, `wish_2`, ... if that is taken."""
        base = identifier(wish)
        count = self._last.get(base, 0)
        name = f"{base}_{count}" if count else base
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        self._last[base] = count
        return name

    def release(self, names: Iterable[str]) -> None:
        """Let names be given out again."""
        self._taken.difference_update(names)
        self._last.clear()


def identifier(wish: str) -> str:
    """The nearest Python identifier."""
    cleaned = re.sub(r"\W+", "_", wish).strip("_") or "value"
    return f"_{cleaned}" if cleaned[0].isdigit() else cleaned


def origin_word(origin: Origin) -> str:
    """A word for what an operation computes: the user's variable, else the operator's short name."""
    if origin.variable:
        return origin.variable
    operator = re.sub(r"^(torch\.ops\.)?(aten|prims|prim|_prims)?[.:]+|^torch\.", "", origin.operator)
    return operator.split(".")[0].strip("_") or origin.node


def buffer_names(schedule: Schedule) -> dict[str, str]:
    """One identifier for every buffer of the graph, used by kernels and host code alike."""
    graph = schedule.graph
    symbols = {symbol.name for symbol in size_symbols(graph)}
    kernels = {step.target.removeprefix("kernels.") for step in schedule.steps if isinstance(step, ExternKernel)}
    namer = Namer(symbols | kernels)
    wishes = _wishes(graph)
    return {name: namer.fresh(wishes.get(name, name)) for name in graph.buffers}


def size_symbols(graph: LoweredGraph) -> set[Symbol]:
    """Every size symbol that the host may have to mention."""
    geometry = ((*buffer.sizes, *buffer.strides) for buffer in graph.buffers.values())
    return set[Symbol]().union(*map(symbols_of, {*graph.size_inputs.values(), *itertools.chain(*geometry)}))


def _wishes(graph: LoweredGraph) -> dict[str, str]:
    wishes = {name: name.removeprefix("the_function_") for name in graph.inputs}
    for operation in graph.operations:
        if operation.origins:
            for name in operation.writes:
                wishes[name] = origin_word(operation.origins[-1])
    return wishes


RESULT_WORDS: dict[str, str] = {
    "add": "total", "sub": "difference", "mul": "product", "truediv": "quotient", "floordiv": "quotient",
    "approximate_truediv": "quotient", "truncdiv": "quotient", "remainder": "rest", "fmod": "rest", "pow": "power",
    "neg": "negated", "checked": "valid",
    "abs": "magnitude", "minimum": "smaller_value", "maximum": "larger_value", "where": "selected", "cast": "converted",
    "exp": "exponential", "log": "logarithm", "sqrt": "root", "rsqrt": "inverse_root", "sigmoid": "gate",
    "tanh": "tanh", "erf": "erf", "eq": "is_equal", "ne": "differs", "lt": "is_below", "le": "is_at_most",
    "gt": "is_above", "ge": "is_at_least", "logical_not": "inverted", "logical_and": "both", "logical_or": "either",
}  # fmt: skip


def result_word(operation: str) -> str:
    """A noun for the result of a scalar operation."""
    return RESULT_WORDS.get(operation, f"{operation}_value")
