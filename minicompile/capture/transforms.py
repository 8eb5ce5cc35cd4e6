"""Transforms of `torch.func`: the user's function becomes a graph of its own, and one node applies the transform to it.

The transform itself is PyTorch's, run by whoever runs the node: over fake tensors here, over real ones in the end, and
as part of a larger graph in between. Must not know what a transform computes.
"""

import contextlib
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from minicompile.capture.break_kinds import Break, RunEager, Stop
from minicompile.capture.builtin_rules import cell_value
from minicompile.capture.calls import CLOSURE_RULES, call, special
from minicompile.capture.side_effects import MISSING
from minicompile.capture.symbolic_size import concrete
from minicompile.capture.torch_interface import dispatcher_kept
from minicompile.capture.torch_rules import same_state, state_of
from minicompile.capture.tracer import Args, Keywords, Tracer
from minicompile.capture.values import CONSTANT_TYPES, force

Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
KIND = "torch.func transform"
WRAPPERS = (torch.func.grad, torch.func.grad_and_value, torch.func.vmap, torch.func.jacrev, torch.func.jacfwd)
"""Transforms that return a closure over the user's function and the settings, by their names as parameters."""


class Seen(Exception):
    """The transform has called its function."""


class Application:
    """A transform of a graph: takes the tensors among the arguments, then what the graph reads besides its own arguments.

    Attributes:
        transform: the transform with its settings; graph: the user's function, once it is traced.
        args, leaves: the structure of the arguments, and those that are no tensors.
        results: the structure of what the user's function returns; found: of what the transform does.
    """

    graph: torch.fx.GraphModule
    results: TreeSpec
    found: TreeSpec

    def __init__(self, name: str, transform: Transform, args: TreeSpec, leaves: list[Any]) -> None:
        self.__name__ = self.__qualname__ = name
        self.transform, self.args = transform, args
        self.leaves = [MISSING if isinstance(leaf, torch.Tensor) else leaf if type(leaf) in CONSTANT_TYPES else None
                       for leaf in leaves]

    def __call__(self, tensors: Args, read: Args) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            own = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            return tree_unflatten([*self.graph.forward(*own, *read)], self.results)

        leaves, self.found = tree_flatten(self.apply(function, tensors))
        return tuple(leaves)

    def apply(self, function: Callable[..., Any], tensors: Args) -> Any:
        """What the transform makes of a function, for some tensors."""
        given = iter(tensors)
        args, kwargs = tree_unflatten([next(given) if leaf is MISSING else leaf for leaf in self.leaves], self.args)
        with dispatcher_kept():
            return self.transform(function)(*args, **kwargs)


def applied(tracer: Tracer, transform: Transform, name: str, target: Any, args: Args, kwargs: Keywords) -> Any:
    """What a transform of `target` gives for some arguments."""
    return recorded(tracer, *traced(tracer, transform, name, target, args, kwargs))


def recorded(tracer: Tracer, application: Application, tensors: Args, read: Args) -> Any:
    """The results of the node that applies a transform."""
    parts = tracer.operation("call_function", application, (tensors, read))
    return tree_unflatten([*parts], application.found)


def traced(tracer: Tracer, transform: Transform, name: str, target: Any, args: Args, kwargs: Keywords) -> Any:
    """A transform of `target` with the graph of it, the tensors among its arguments, and what the graph reads besides."""
    force(tracer, (args, kwargs))
    leaves, structure = tree_flatten((args, kwargs))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    application = Application(name, transform, structure, leaves)
    before, others = state_of(tracer), [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    with tracer.graph.inner(transformed=True) as inner:
        (own, keywords), grad_mode = seen_inside(tracer, application, tensors, inner, others)
        try:
            with torch.set_grad_enabled(grad_mode):
                result = call(tracer, target, own, keywords)
        except Stop as stop:
            raise Break(KIND, f"inside `{name}`: {stop.reason}") from None
        force(tracer, result)
        found, application.results = tree_flatten(result)
        if not all(isinstance(item, torch.Tensor) for item in found):
            raise Break(KIND, f"the function inside `{name}` returns more than tensors")
        application.graph = inner.finish(found)
    after = state_of(tracer)
    if not same_state(*({key: state[key] for key in state if key[0] in ("input", "tensor")} for state in (before, after))):
        raise Break(KIND, f"a tensor from outside is changed inside `{name}`")
    return application, tensors, tuple(inner.lifted())


def seen_inside(tracer: Tracer, application: Application, tensors: Args, inner: Any, others: list[Any]) -> tuple[Any, bool]:
    """The arguments that a transform hands to its function, new tensors in place of those wrapped by it, and the grad mode."""
    seen: list[Any] = []

    def look(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree_flatten((args, kwargs))
        seen.extend((structure, torch.is_grad_enabled(), [
            (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves]))
        raise Seen

    def probe(tensors: Args) -> None:
        with contextlib.suppress(Seen):
            application.apply(look, tensors)

    tracer.graph.run_fake("call_function", probe, (tensors,), {})
    structure, grad_mode, leaves = seen
    rest = iter(others)
    with tracer.graph.fake_mode:
        made = [inner.placeholder(torch.empty_strided(leaf[0], leaf[1], dtype=leaf[2], device=leaf[3]).requires_grad_(leaf[4]))
                if type(leaf) is tuple else next(rest) for leaf in leaves]
    return tree_unflatten(made, structure), grad_mode


def rule_wrapper(tracer: Tracer, function: types.FunctionType, args: Args, kwargs: Keywords) -> Any:
    """A call of what one of `WRAPPERS` returned."""
    frame = tracer.enter(function, args, kwargs)
    make = BY_CODE[function.__code__]
    settings = {name: concrete(cell_value(tracer, frame.cells[name])) for name in inspect.signature(make).parameters}
    force(tracer, settings)
    target = settings.pop("func")
    if settings.get("chunk_size") is not None:
        raise Break(KIND, "a transform by chunks calls its function several times")
    return applied(tracer, functools.partial(make, **settings), make.__name__, target, args, kwargs)


BY_CODE: dict[types.CodeType, Any] = {transform(force).__code__: transform for transform in WRAPPERS}
CLOSURE_RULES.update({(transform(force).__globals__["__name__"], code.co_qualname): rule_wrapper
                      for code, transform in BY_CODE.items()})


@special(torch.func.jvp)
def rule_jvp(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`jvp(function, primals, tangents)`."""
    return applied(tracer, lambda target: functools.partial(torch.func.jvp, target, **kwargs), "jvp", args[0], args[1:], {})


@special(torch.func.vjp)
def rule_vjp(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`vjp(function, *primals)`: the value, and a function of which every call is a node of its own."""
    function, *primals = args

    def values(target: Any) -> Any:
        return lambda *given: torch.func.vjp(target, *given, **kwargs)[::2]

    application, tensors, read = traced(tracer, values, "vjp", function, tuple(primals), {})
    if any(part in str(node.target) for node in application.graph.graph.nodes for part in RANDOM):
        raise Break(KIND, "the function inside `vjp` draws random numbers")
    value, *rest = recorded(tracer, application, tensors, read)
    pull = functools.partial(pulled_back, application, read, versions(tensors, read), bool(rest), *primals)
    return value, tracer.made(pull), *rest


def versions(*tensors: Args) -> list[int]:
    """How often tensors have been written, which those of `inference_mode` do not tell."""
    counting = [item for part in tensors for item in part if isinstance(item, torch.Tensor)]
    if torch.is_inference_mode_enabled() or any(item.is_inference() for item in counting):
        raise RunEager("`vjp` is called under `inference_mode`", KIND)
    return [item._version for item in counting]


RANDOM = ("rand", "drop", "normal", "bernoulli", "uniform", "multinomial", "poisson", "rrelu", "gumbel", "Application")


def pulled_back(*args: Any) -> Any:
    """Stands for the function that `vjp` returns."""


@special(pulled_back)
def rule_pulled_back(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """The gradients that the function returned by `vjp` makes of those of the value."""
    values, read, before, has_aux, *given = args

    def pull(target: Any) -> Any:
        return lambda *given: torch.func.vjp(target, *given[:-1], has_aux=has_aux)[1](given[-1])

    force(tracer, given)
    leaves, structure = tree_flatten((tuple(given), {}))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    if before != versions(tuple(tree_leaves(given[:-1])), read):
        raise Break(KIND, "a tensor was changed since `vjp`")
    application = Application("vjp", pull, structure, leaves)
    application.graph, application.results = values.graph, values.results
    return recorded(tracer, application, tensors, read)
