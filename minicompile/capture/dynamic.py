"""Which numbers stay symbolic. Sizes and integers are constants first; those that changed become symbols.

What torch's `ShapeEnv` assumed about the symbols is turned into guards when the frame ends. Must not decide when to
recompile; it is told what changed.
"""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod
from torch.utils._sympy.printers import PythonPrinter

from minicompile.capture.break_kinds import Break, RunEager
from minicompile.capture.guards import Guard, TensorGuard
from minicompile.capture.source import Source
from minicompile.capture.torch_interface import DimDynamic, StatelessSymbolicContext
from minicompile.capture.tracer import Tracer


class SizeOf(Source):
    """`parent.size(dim)` or `parent.stride(dim)`."""

    __slots__ = ("method", "dim")

    def __init__(self, parent: Source, method: str, dim: int) -> None:
        self.parent, self.method, self.dim = parent, method, dim

    def expression(self, base: str, constant: Any) -> str:
        return f"{base}.{self.method}({self.dim})"

    def words(self) -> str:
        return f"{self.parent.words() if self.parent else ''}.{self.method}({self.dim})"


class SymbolPrinter(PythonPrinter):
    """Prints an expression with each symbol replaced by text."""

    def __init__(self, names: dict[Any, str]) -> None:
        super().__init__()
        self.names = names

    def _print_Symbol(self, symbol: sympy.Symbol) -> str:  # noqa: N802 - sympy's name
        if symbol not in self.names:
            raise RunEager(f"a size without a source ({symbol})")
        return self.names[symbol]


class DynamicPlan:
    """The sizes and numbers that are to be symbolic in the next capture.

    Attributes:
        policy: `True` at once, `None` from the second value on, `False` never.
        sizes: (words of the source, dimension); numbers: words of the source.
    """

    def __init__(self, policy: bool | None) -> None:
        self.policy = policy
        self.sizes: set[tuple[str, int]] = set()
        self.numbers: set[str] = set()

    def learn(self, guard: Guard | TensorGuard, value: Any) -> None:
        """Make symbolic what a failed guard shows to vary."""
        if self.policy is False:
            return
        words = guard.source.words()
        if isinstance(guard, TensorGuard):
            if isinstance(value, torch.Tensor) and value.dim() == len(guard.sizes):
                for dim, (old, new) in enumerate(zip(guard.sizes, value.shape, strict=True)):
                    if old is not None and old != new:
                        self.sizes.add((words, dim))
        elif guard.kind == "constant" and type(guard.expected) is int and type(value) is int:
            self.numbers.add(words)

    def number(self, tracer: Tracer, real: Any, source: Source) -> Any:
        """The symbol for an integer from outside, or `None` if it is to be a constant."""
        if type(real) is not int or self.policy is False or real < 0 or source.words() not in self.numbers:
            return None
        env = tracer.graph.fake_mode.shape_env
        tag = ConstantSource(f"number_{len(tracer.symbols)}")
        symbol = env.create_unspecified_symbol(real, tag, DimDynamic.DYNAMIC)
        value = env.create_symintnode(symbol, hint=real, source=tag)
        tracer.guards.test(source, "type({0}) is int and {0} >= 0", (), "`{0}` is an int and not negative", "type",
                           tracer.location())
        tracer.symbols[symbol] = (source, value)
        return value

    def fake_tensor(self, tracer: Tracer, real: torch.Tensor, source: Source) -> tuple[Any, Any, Any]:
        """A fake tensor for `real`, with the sizes and strides to guard (`None` where they may vary)."""
        words, mode = source.words(), tracer.graph.fake_mode
        free = [dim for dim, size in enumerate(real.shape) if size > 1 and self.is_dynamic(real, words, dim)]
        if not free or real._base is not None or real.storage_offset() != 0:
            return mode.from_tensor(real, static_shapes=True), tuple(real.shape), tuple(real.stride())
        context: Any = StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.DYNAMIC if dim in free else DimDynamic.STATIC for dim in range(real.dim())])
        fake = mode.from_tensor(real, symbolic_context=context, source=ConstantSource(f"tensor_{len(tracer.graph.traced)}"))
        sizes, strides = [], []
        for dim in range(real.dim()):
            sizes.append(self.free_or_fixed(tracer, fake.shape[dim], SizeOf(source, "size", dim)))
        for dim in range(real.dim()):
            strides.append(self.free_or_fixed(tracer, fake.stride()[dim], SizeOf(source, "stride", dim)))
        return fake, tuple(sizes), tuple(strides)

    def is_dynamic(self, real: torch.Tensor, words: str, dim: int) -> bool:
        """Whether a dimension of an input is to be symbolic."""
        if self.policy is None:
            return (words, dim) in self.sizes
        return self.policy and not isinstance(real, torch.nn.Parameter)

    def free_or_fixed(self, tracer: Tracer, value: Any, source: SizeOf) -> int | None:
        """Bind a size or stride to its symbol; the number to guard if it has none."""
        if not isinstance(value, torch.SymInt):
            return int(value)
        expression = value.node.expr
        if expression.is_number:
            return int(expression)
        if isinstance(expression, sympy.Symbol) and expression not in tracer.symbols:
            tracer.symbols[expression] = (source, value)
        else:
            tracer.stride_relations.append((source, expression))
        return None

    def add_guards(self, tracer: Tracer, writer: Any, line: Any) -> None:
        """Write what the graph assumes about its symbols: bounds, relations, strides."""
        if not tracer.symbols:
            return
        env = tracer.graph.fake_mode.shape_env
        printer = self.printer(tracer, writer)
        for source, value in tracer.symbols.values():
            if isinstance(source, SizeOf) and source.method == "size":
                writer.lines.append(line(f"{writer.fetch(source)} >= 2"))
            del value
        for guard in env.guards:
            writer.lines.append(line(printer.doprint(guard.expr)))
        for source, expression in tracer.stride_relations:
            writer.lines.append(line(f"{writer.fetch(source)} == {printer.doprint(expression)}"))

    def printer(self, tracer: Tracer, writer: Any) -> SymbolPrinter:
        """A printer over fetched variables."""
        return SymbolPrinter({symbol: writer.fetch(source) for symbol, (source, _) in tracer.symbols.items()})

    def expression(self, tracer: Tracer, writer: Any, value: Any) -> str:
        """Python text for a symbolic number."""
        expression = value.node.expr
        text = self.printer(tracer, writer).doprint(expression)
        return f"({text})"


def symbol_node(tracer: Tracer, value: Any) -> Any:
    """The FX argument for a symbolic number: an input of the graph, arithmetic over such inputs, or a plain number."""
    expression = value.node.expr
    if expression.is_number:
        return int(expression) if isinstance(value, torch.SymInt) else float(expression)
    node, _ = expression_node(tracer, expression)
    return node


ARITHMETIC = {sympy.Add: operator.add, sympy.Mul: operator.mul, FloorDiv: operator.floordiv, Mod: operator.mod,
              PythonMod: operator.mod}


def expression_node(tracer: Tracer, expression: Any) -> tuple[Any, Any]:
    """An FX argument and the symbolic number for an expression."""
    if expression.is_Integer:
        return int(expression), int(expression)
    known = tracer.symbol_nodes.get(expression)
    if known is not None:
        return known
    if isinstance(expression, sympy.Symbol):
        if expression not in tracer.symbols:
            raise Break("unsupported argument", "a size without a source")
        source, value = tracer.symbols[expression]
        entry = tracer.graph.add_input(value, source, "size", None)
        result = tracer.graph.node_of(entry), value
    elif type(expression) in ARITHMETIC:
        function = ARITHMETIC[type(expression)]
        parts = [expression_node(tracer, part) for part in expression.args]
        node, value = parts[0]
        for other, number in parts[1:]:
            value = function(value, number)
            node = tracer.graph.graph.call_function(function, (node, other))
            node.meta["example_value"], node.meta["location"] = value, tracer.location()
        result = node, value
    elif isinstance(expression, sympy.Pow) and expression.args[1].is_Integer and 0 < int(expression.args[1]) < 5:
        return expression_node(tracer, sympy.Mul(*[expression.args[0]] * int(expression.args[1]), evaluate=False))
    else:
        raise Break("unsupported argument", f"a size of the form {expression}")
    tracer.symbol_nodes[expression] = result
    return result
