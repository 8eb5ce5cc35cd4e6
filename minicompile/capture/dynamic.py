"""Which numbers stay symbolic. Sizes and integers are constants first; those that changed become symbols.

What torch's `ShapeEnv` assumed about the symbols is turned into guards when the frame ends. Must not decide when to
recompile: a capture is where it learns that a number differs from what an earlier capture saw.
"""

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils._sympy.printers import PythonPrinter

from minicompile.capture.break_kinds import Break, RunEager
from minicompile.capture.guards import Guard
from minicompile.capture.kinds import isinstance
from minicompile.capture.source import Argument, Computed, Source
from minicompile.capture.symbolic_float import SymbolicFloat, fixed
from minicompile.capture.torch_interface import fake_input, new_symbol, shape_env_of, symbolic_fake
from minicompile.capture.tracer import Args, Keywords, Tracer
from minicompile.ir.float_input import new_float
from minicompile.ir.size_nodes import append_expression

SMALLEST_SIZE = 2
"""Sizes 0 and 1 are always constants: torch's rules for broadcasting and strides treat them as special."""


class SizeOf(Source):
    """`parent.size(dim)` or `parent.stride(dim)`."""

    __slots__ = ()

    def __init__(self, parent: Source, method: str, dim: int) -> None:
        super().__init__(parent, f"{{0}}.{method}({dim})", f"{{0}}.shape[{dim}]" if method == "size" else "")


class SymbolPrinter(PythonPrinter):
    """Prints an expression with each symbol replaced by text."""

    def __init__(self, names: dict[Any, str]) -> None:
        super().__init__()
        self.names = names

    def _print_Symbol(self, symbol: sympy.Symbol) -> str:  # sympy's name
        return self.names[symbol]


class DynamicPlan:
    """What captures of one code object have seen of sizes and numbers, and so which of them are to be symbolic.

    Attributes:
        policy: `True` at once, `None` from the second value on, `False` never. Marks on tensors come before it.
        seen: the first value of each number: the origin of its source and which of its numbers it is, to the value.
        varying: those that had another value later.
        floats, integers: whether those that vary become inputs of graphs.
    """

    def __init__(self, policy: bool | None) -> None:
        self.policy = policy
        self.seen: dict[tuple[Any, ...], Any] = {}
        self.varying: set[tuple[Any, ...]] = set()
        self.floats = self.integers = True

    def give_up(self, takes_floats: bool) -> str:
        """Let floats be constants from now on, or integers, or sizes too; gives the kind of number.

        Floats that are computed from sizes stay inputs of a graph until the integers are constants.
        """
        kind = "float" if takes_floats and self.floats else "integer" if self.integers else "size"
        self.floats = False
        self.integers &= kind == "float"
        self.policy = False if kind == "size" else self.policy
        return kind

    def varies(self, key: tuple[Any, ...], value: Any) -> bool:
        """Whether a number, of which this is the present value, has had two values."""
        if self.seen.setdefault(key, value) != value:
            self.varying.add(key)
        return key in self.varying

    def number(self, tracer: Tracer, real: Any, source: Source) -> Any:
        """The stand-in for an integer or float from outside that varies, or `None` if it is to be a constant."""
        if self.policy is False or type(real) is int and abs(real) >> 63:
            return None
        if type(real) is float:
            if not self.floats or not self.varies((source.origin(), "float"), real.hex()):
                return None
            tracer.floats = True
            tracer.guards.test(source, "type({0}) is float", (), "`{0}` is a float", "type")
            return SymbolicFloat(tracer, source, real)
        if not self.integers:
            return None
        # What is computed from numbers that vary varies with them.
        at_once = (type(source) is Computed or self.policy is True and type(source) is Argument) and abs(real) > 1
        if not self.varies((source.origin(), "number"), real) and not at_once:
            return None
        sign = "negative" if real < 0 else "not negative"
        tracer.guards.test(source, f"type({{0}}) is int and {{0}} {'<' if real < 0 else '>='} 0", (),
                           f"`{{0}}` is an int and {sign}", "type")
        value = self.symbol(tracer, abs(real), Source(source, "-{0}") if real < 0 else source, int(real < 0), None)
        return -value if real < 0 else value

    def operation(self, tracer: Tracer, record: Callable[..., Any], args: Args, kwargs: Keywords) -> Any:
        """Record an operation; floats that vary are inputs of it, unless PyTorch needs to know their values."""
        floats = [item for item in tree_leaves((args, kwargs)) if type(item) is SymbolicFloat]
        if not floats:
            return record(args, kwargs)
        try:
            return record(*tree_map(lambda item: operand(tracer, item), (args, kwargs)))
        except Break:
            return record(*tree_map(fixed, (args, kwargs)))

    def symbol(self, tracer: Tracer, value: int, source: Source, low: int, high: int | None) -> Any:
        """A symbolic integer between two bounds that stands for the value of a source."""
        env = shape_env_of(tracer.graph.fake_mode, tracer.location)
        symbol, number = new_symbol(env, value, f"number_{len(tracer.symbols)}", low, high)
        tracer.symbols[symbol] = (source, number)
        return number

    def remainder(self, tracer: Tracer, number: Any, divisor: int) -> Any:
        """`number % divisor` as a symbol of its own: of padded sizes spelled out, algebra soon takes for ever."""
        value = number % divisor
        if value.node.expr.is_number or not self.integers:
            return value
        source = self.source_of(tracer, value)
        for known, named in tracer.symbols.values():
            if type(known) is Computed and (known.text, known.parts) == (source.text, source.parts):
                return named
        return self.symbol(tracer, value.node.hint, source, 0, divisor - 1)

    def fake_tensor(self, tracer: Tracer, real: torch.Tensor, source: Source) -> tuple[Any, Any, Any]:
        """A fake tensor for `real`, with the sizes and strides to guard (`None` where they may vary)."""
        origin, mode = source.origin(), tracer.graph.fake_mode
        free = [self.is_dynamic(real, origin, dim) and size >= SMALLEST_SIZE for dim, size in enumerate(real.shape)]
        fixed_strides = [self.policy is False or not self.varies((origin, real.dim(), "stride", dim), stride) or stride < 2
                         for dim, stride in enumerate(real.stride())]
        if not any(free) and (all(fixed_strides) or self.policy is not None or real.is_contiguous()):
            return fake_input(mode, real), tuple(real.shape), tuple(real.stride())
        ranges = {each.dim: each for each in getattr(real, "_dynamo_dynamic_range", ())}
        sizes: list[Any] = []
        for dim, size in enumerate(real.shape):
            low, high = getattr(ranges.get(dim), "min", None), getattr(ranges.get(dim), "max", None)
            if free[dim] and (low or 0) <= size <= (high or size):
                size = self.symbol(tracer, size, SizeOf(source, "size", dim), max(low or 0, SMALLEST_SIZE), high)
                if dim in getattr(real, "_dynamo_dynamic_indices", ()):
                    tracer.marked_sizes.append(size)
            sizes.append(size)
        strides = self.strides(tracer, real, source, sizes, fixed_strides)
        return symbolic_fake(mode, real, sizes, strides), fixed_numbers(sizes), fixed_numbers(strides)

    def is_dynamic(self, real: torch.Tensor, origin: tuple[Any, ...], dim: int) -> bool:
        """Whether a dimension of an input is to be symbolic."""
        if dim in getattr(real, "_dynamo_static_indices", ()):
            return False
        if any(dim in getattr(real, f"_dynamo_{kind}_indices", ()) for kind in ("dynamic", "weak_dynamic", "unbacked")):
            return True
        if self.policy is False or isinstance(real, torch.nn.Parameter):
            return False
        return self.varies((origin, real.dim(), "size", dim), real.shape[dim]) or self.policy is True

    def strides(self, tracer: Tracer, real: torch.Tensor, source: Source, sizes: list[Any], fixed: list[bool]) -> list[Any]:
        """The strides: products of symbolic sizes where they are such now, else numbers, or symbols if they varied."""
        strides: list[Any] = list(real.stride())
        products: dict[int, Any] = {}
        for dim in sorted(range(real.dim()), key=lambda dim: (strides[dim], real.shape[dim], -dim)):
            stride = strides[dim]
            if stride in products:
                strides[dim] = products[stride]
                tracer.stride_relations.append((SizeOf(source, "stride", dim), products[stride].node.expr, tracer.location()))
            elif not fixed[dim]:
                strides[dim] = self.symbol(tracer, stride, SizeOf(source, "stride", dim), 2, None)
            product = strides[dim] * sizes[dim]
            if stride > 0 and isinstance(product, torch.SymInt):
                products[stride * real.shape[dim]] = product
        return strides

    def source_of(self, tracer: Tracer, value: Any) -> Computed:
        """Where a symbolic number comes from."""
        symbols = sorted(value.node.expr.free_symbols, key=str)
        text = SymbolPrinter({symbol: f"{{{place}}}" for place, symbol in enumerate(symbols)}).doprint(value.node.expr)
        if any(symbol not in tracer.symbols for symbol in symbols):
            raise RunEager(f"a size without a source ({value})")
        kind = "float" if type(value) is torch.SymFloat else ""  # a known zero is an integer in text
        return Computed(f"{kind}({text})", tuple(tracer.symbols[symbol][0] for symbol in symbols))

    def expression(self, tracer: Tracer, writer: Any, value: Any) -> str:
        """Python text for a symbolic number."""
        source = self.source_of(tracer, value)
        return str(source.text.format(*map(writer.fetch, source.parts)))


def fixed_numbers(numbers: list[Any]) -> tuple[int | None, ...]:
    """The numbers, `None` in place of symbolic ones."""
    return tuple(None if isinstance(number, torch.SymInt) else number for number in numbers)


def shape_guards(tracer: Tracer) -> list[Guard]:
    """What the graph assumes about its symbols: bounds, strides, and what `ShapeEnv` had to decide."""
    env: Any = tracer.graph.fake_mode.shape_env
    if env is None:
        return []
    sources = {symbol: source for symbol, (source, _) in tracer.symbols.items()}
    facts: list[tuple[Any, Any]] = []
    for symbol, source in sources.items():
        if isinstance(source, SizeOf):
            low, high = env.bounds_at_first[symbol]
            facts.append((sympy.Ge(symbol, low, evaluate=False), None))
            facts += [] if high is None else [(sympy.Le(symbol, high, evaluate=False), None)]
    for source, product, place in tracer.stride_relations:
        symbol = sympy.Symbol(f"stride_{len(sources)}", integer=True)
        sources[symbol] = source
        facts.append((sympy.Eq(symbol, product, evaluate=False), place))
    facts += [(guard.expr, place) for guard, place in zip(env.guards, env.guards.places, strict=True)]
    guards = [shape_guard(tracer, fact, sources, place) for fact, place in facts]
    return list({guard.condition + guard.sentence: guard for guard in guards}.values())


def shape_guard(tracer: Tracer, fact: Any, sources: dict[Any, Source], place: Any) -> Guard:
    """The guard for one relation between symbols."""
    symbols = sorted(fact.free_symbols, key=str)
    if any(symbol not in sources for symbol in symbols):
        raise RunEager(f"a size without a source ({fact})")
    fetched = tuple(sources[symbol] for symbol in symbols)
    condition = SymbolPrinter({symbol: f"{{others[{place}]}}" for place, symbol in enumerate(symbols)}).doprint(fact)
    sentence = SymbolPrinter({symbol: source.words() for symbol, source in zip(symbols, fetched, strict=True)}).doprint(fact)
    first = tracer.symbols.get(symbols[0])
    return Guard(fetched[0], condition, (), f"`{sentence}`", "shape", first and first[1].node.hint, fetched, place)


def check_marks(tracer: Tracer) -> list[str]:
    """What `mark_dynamic` asked for and the program does not allow: sizes that it fixes, with the line that does."""
    complaints = []
    env: Any = tracer.graph.fake_mode.shape_env
    for size in tracer.marked_sizes:
        symbol = size.node._expr
        fixed = env.replace(symbol)
        if fixed.is_number:
            source = tracer.symbols[symbol][0]
            places = [place for guard, place in zip(env.guards, env.guards.places, strict=True)
                      if symbol in guard.expr.free_symbols]
            complaints.append(f"`{source.words()}` is marked as dynamic, but the program fixes it to {fixed}"
                              + (f" (at {places[-1]})" if places and places[-1] else ""))
    return complaints


def operand(tracer: Tracer, value: Any) -> Any:
    """What operators take: for a float that varies a number of PyTorch's."""
    if type(value) is not SymbolicFloat or value.fixed:
        return fixed(value)
    if value.number is None:
        env = shape_env_of(tracer.graph.fake_mode, tracer.location)
        symbol, value.number = new_float(env, f"float_{len(tracer.symbols)}", value.real)
        tracer.symbols[symbol] = (value.source, value.number)
        tracer.graph.takes_floats = True
    return value.number


def symbol_node(tracer: Tracer, value: Any) -> Any:
    """The FX argument for a symbolic number: an input of the graph, arithmetic over such inputs, or a plain number."""
    expression = value.node.expr
    if expression.is_number:
        return int(expression) if isinstance(value, torch.SymInt) else float(expression)
    known = tracer.symbol_nodes.get(expression)
    if known is None:
        known = tracer.symbol_nodes[expression] = expression_node(tracer, expression)
    return known


def expression_node(tracer: Tracer, expression: Any) -> Any:
    """The node of an expression, with the nodes of its parts appended to the graph."""
    inputs: dict[Any, Node] = {}
    for symbol in sorted(expression.free_symbols, key=str):
        if symbol not in tracer.symbols:
            raise Break("unsupported argument", "a size without a source")
        source, value = tracer.symbols[symbol]
        entry = tracer.graph.traced.get(id(value)) or tracer.graph.add_input(value, source, "size", None)
        inputs[symbol] = tracer.graph.node_of(entry)

    def annotate(node: Node, number: Any) -> None:
        node.meta["example_value"], node.meta["location"] = number, tracer.location()

    try:
        return append_expression(tracer.graph.graph, expression, inputs, annotate, "example_value")
    except (NotImplementedError, AttributeError, TypeError, KeyError) as error:
        raise Break("unsupported argument", f"a size of the form {expression}") from error
