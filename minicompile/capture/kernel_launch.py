"""Launches of the user's own Triton kernels: one opaque operator, which gives new versions of the tensors that a kernel writes.

The kernel works on copies of these; a `copy_` behind the operator says what has changed. So no later stage has to know of
kernels. Written for triton 3.6 and 3.9; used of it are `KernelInterface.__getitem__`, `run` of its subclasses, `fn`,
`arg_names`, `configs` and `values`. Must not compile or run a kernel while tracing.
"""

import ast
import builtins
import dataclasses
import functools
import inspect
import itertools
import textwrap
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import triton
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import ConstexprFunction, JITFunction, KernelInterface

from minicompile.capture.break_kinds import Break
from minicompile.capture.calls import call, special
from minicompile.capture.output_graph import needs_gradient
from minicompile.capture.shared_memory import is_whole
from minicompile.capture.symbolic_size import concrete
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import Args, Keywords, Tracer
from minicompile.capture.values import CONSTANT_TYPES
from minicompile.ir.fake_mode import storage_key


class Hole(NamedTuple):
    """An argument that differs from call to call: a tensor or an integer, by its place among them."""

    place: int
    is_tensor: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Launch:
    """A launch with holes.

    Attributes:
        args, kwargs: what the kernel is called with.
        grids: the grid for each choice of the parameters named in `chosen`, which Triton makes when the kernel is launched.
        written: which tensors the kernel writes; fresh: those whose contents nobody has set.
    """

    kernel: Any
    args: Args
    kwargs: Keywords
    chosen: tuple[str, ...]
    grids: dict[tuple[Any, ...], tuple[Any, ...]]
    written: tuple[int, ...]
    fresh: frozenset[int]

    def run(self, tensors: list[torch.Tensor], strides: list[int], integers: list[int]) -> list[torch.Tensor]:
        """Launch on copies of the written tensors, and give these; `strides` are those that the user's program saw."""
        left = iter(strides)
        given = list(tensors)
        for place, tensor in enumerate(tensors):
            wanted = tuple(itertools.islice(left, tensor.dim()))
            if place in self.written or tensor.stride() != wanted:
                given[place] = torch.empty_strided(tensor.shape, wanted, dtype=tensor.dtype, device=tensor.device)
                if place not in self.fresh:
                    given[place].copy_(tensor)

        def filled(value: Any) -> Any:
            if type(value) is Hole:
                return (given if value.is_tensor else integers)[value.place]
            return tuple(map(filled, value)) if type(value) is tuple else value

        def grid(meta: dict[str, Any]) -> Any:
            return filled(self.grids[tuple(meta[name] for name in self.chosen)])

        keywords = {name: filled(value) for name, value in self.kwargs.items()}
        self.kernel.run(*map(filled, self.args), grid=grid, warmup=False, **keywords)
        return [given[place] for place in self.written]


LAUNCHES: list[Launch] = []
"""All launches that were captured, of the whole process: the operator knows them by number."""
LIBRARY = torch.library.Library("minicompile_kernels", "DEF")
LIBRARY.define("launch(int number, Tensor[] tensors, SymInt[] strides, SymInt[] integers) -> Tensor[]",
               tags=(torch.Tag.pt2_compliant_tag,))


def fake_launch(number: int, tensors: list[torch.Tensor], strides: list[Any], integers: list[Any]) -> list[torch.Tensor]:
    """The metadata of what the operator gives."""
    return [torch.empty_strided(tensors[place].shape, tensors[place].stride(), dtype=tensors[place].dtype,
                                device=tensors[place].device) for place in LAUNCHES[number].written]


LIBRARY.impl("launch", lambda number, *given: LAUNCHES[number].run(*given), "CompositeExplicitAutograd")
torch.library.register_fake("minicompile_kernels::launch", fake_launch, lib=LIBRARY)


@special(ConstexprFunction.__call__)
def rule_constexpr_function(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`triton.cdiv(n, BLOCK)`, `triton.next_power_of_2(n)` and what users write like them."""
    function, *rest = args
    return tracer.inline(function.fn, tuple(rest if function is triton.cdiv else map(concrete, rest)), kwargs)


@special(KernelInterface.__getitem__)
def rule_of_grid(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`kernel[grid]`."""
    kernel, grid = args
    return tracer.made(functools.partial(types.MethodType(type(kernel).run, kernel), grid=grid, warmup=False))


@special(JITFunction.run, InterpretedFunction.run, Autotuner.run, Heuristics.run)
def rule_launch(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`kernel[grid](*args, **kwargs)`."""
    kernel, *positional = args
    keywords = dict(kwargs)
    grid = keywords.pop("grid", None)
    at = tracer.frames[-1]
    if keywords.pop("warmup", True) or id(kernel) not in tracer.sources or at.program.instructions[at.index].name != "POP_TOP":
        raise Break("unknown call", "a Triton kernel is launched in a way that is not followed")
    tracer.guards.identity(tracer.sources[id(kernel)], kernel)
    values = {**dict(zip(kernel.arg_names, positional, strict=False)), **keywords}
    tensors: list[Any] = []
    integers: list[Any] = []

    def hollow(value: Any) -> Any:
        kind = type(value)
        if isinstance(value, FakeTensor) or kind is torch.SymInt:
            held = tensors if isinstance(value, FakeTensor) else integers
            place = next((place for place, item in enumerate(held) if item is value), len(held))
            held.extend([value] * (place == len(held)))
            return Hole(place, held is tensors)
        if kind not in CONSTANT_TYPES and not isinstance(value, triton.language.dtype):
            value = concrete(value)
            if type(value) not in CONSTANT_TYPES:
                raise Break("unsupported argument", f"a Triton kernel is given an object of type {kind.__name__}")
        return value

    holes = tuple(map(hollow, positional)), {name: hollow(value) for name, value in keywords.items()}
    choices = list(choices_of(tracer, kernel, values))
    chosen = tuple(name for name in kernel.arg_names if name in choices[0] and name not in values)
    grids = {}
    for choice in choices:
        found = call(tracer, grid, (tracer.made(choice),), {}) if callable(grid) else grid
        if type(found) is not tuple:
            raise Break("unsupported argument", "the grid of a Triton kernel is no tuple")
        grids[tuple(choice[name] for name in chosen)] = tuple(map(hollow, found))
    names = written_names(kernel)
    written = [place for place, tensor in enumerate(tensors)
               if names is None or any(values[name] is tensor for name in names if name in values)]
    check_tensors(tracer, tensors, [tensors[place] for place in written])
    fresh = frozenset(place for place in written if is_fresh(tracer, tensors[place]))
    LAUNCHES.append(Launch(kernel, *holes, chosen, grids, tuple(written), fresh))
    record(tracer, tensors, integers, [tensors[place] for place in written])


def record(tracer: Tracer, tensors: list[Any], integers: list[Any], written: list[Any]) -> None:
    """The nodes of a launch; autograd knows nothing of it."""
    with tracer.graph.without_gradients(tracer.location()):
        strides = [stride for tensor in tensors for stride in tensor.stride()]
        launch = torch.ops.minicompile_kernels.launch.default
        results = tracer.operation("call_function", launch, (len(LAUNCHES) - 1, tensors, strides, integers))
        for old, new in zip(written, results, strict=True):
            tracer.operation("call_method", "copy_", (old, new))


def choices_of(tracer: Tracer, kernel: Any, values: Keywords) -> Iterator[Keywords]:
    """The arguments by name, with what each choice of an autotuner and of heuristics adds."""
    if isinstance(kernel, Autotuner):
        for config in kernel.configs:
            yield from choices_of(tracer, kernel.fn, {**values, **config.all_kwargs()})
    elif isinstance(kernel, Heuristics):
        for name, function in kernel.values.items():
            values = {**values, name: concrete(call(tracer, function, (tracer.made(dict(values)),), {}))}
        yield from choices_of(tracer, kernel.fn, values)
    elif isinstance(kernel, (JITFunction, InterpretedFunction)):
        yield values
    else:
        raise Break("unknown call", f"a kernel of type {type(kernel).__name__} is launched")


def check_tensors(tracer: Tracer, tensors: Sequence[Any], written: Sequence[Any]) -> None:
    """Refuse tensors of which a copy is not as good: parts of others, which a kernel may leave, and those that autograd saved."""
    if len({storage_key(tensor) for tensor in tensors}) < len(tensors) or not all(map(is_whole, tensors)) or not tensors:
        raise Break("real memory", "a Triton kernel is given tensors that are parts of others")
    for tensor in tensors:
        source = tracer.sources.get(id(tensor))
        if source is not None:
            tracer.guards.test(source, "{1}({0})", (is_whole,), "`{0}` is all of its memory", "overlap")
    for tensor in written:
        node = tracer.graph.traced[id(tensor)].node
        if tensor.requires_grad or node is not None and any(needs_gradient(user.meta["example_value"]) for user in node.users):
            raise Break("autograd call", "a Triton kernel writes a tensor that autograd knows")


def is_fresh(tracer: Tracer, tensor: Any) -> bool:
    """Whether nothing was done with a tensor since it was made without contents."""
    node = tracer.graph.traced[id(tensor)].node
    made = node is not None and node.op != "placeholder" and not node.users
    return made and getattr(node.target, "__name__", str(node.target)) in ("empty", "empty_like", "empty_strided", "new_empty")


@functools.cache
def written_names(kernel: Any) -> frozenset[str] | None:
    """The parameters from which a kernel may compute an address that it stores to; `None` if its source cannot be read."""
    function = kernel
    while not isinstance(function, types.FunctionType):  # decorators
        function = function.fn
    try:
        tree: Any = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, SyntaxError, TypeError):
        return None
    reached = {name: frozenset({name}) for name in inspect.signature(function).parameters}

    def read(*parts: ast.AST) -> frozenset[str]:
        names = (step.id for part in parts for step in ast.walk(part) if isinstance(step, ast.Name))
        return frozenset().union(*(reached.get(name, frozenset()) for name in names))

    before = None
    while before != reached:
        before = dict(reached)
        for step in ast.walk(tree):
            value = getattr(step, "iter" if isinstance(step, ast.For) else "value", None)
            targets = getattr(step, "targets", None) or [getattr(step, "target", None)]
            for target in targets if value is not None else ():
                for name in ast.walk(target) if target is not None else ():
                    if isinstance(name, ast.Name):
                        reached[name.id] = reached.get(name.id, frozenset()) | read(value)
    calls = [step for step in ast.walk(tree) if isinstance(step, ast.Call)]
    return frozenset().union(*(read(*stored_to(step, function.__globals__)) for step in calls))


def stored_to(step: ast.Call, namespace: dict[str, Any]) -> list[ast.AST]:
    """The parts of a call in a kernel that may be addresses to store to."""
    name = step.func.attr if isinstance(step.func, ast.Attribute) else getattr(step.func, "id", "")
    root = step.func
    while isinstance(root, ast.Attribute):
        root = root.value
    found = namespace.get(root.id) if isinstance(root, ast.Name) else None
    given: list[ast.AST] = [*step.args, *(keyword.value for keyword in step.keywords)]
    module = found.__name__ if isinstance(found, types.ModuleType) else getattr(found, "__module__", None) or ""
    known = module.startswith("triton.language") or found is None and (
        isinstance(step.func, ast.Attribute) or hasattr(builtins, name))
    if not known or "asm" in name:
        return given
    return [step.func, *(step.args[:1] or given)] if "store" in name or "atomic" in name else []
