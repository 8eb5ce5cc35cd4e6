"""`torch.autograd.Function`: the forward is inlined, the backward is traced into a graph of its own, one node joins them.

The forward's operations are recorded without gradients, as eager runs them. Then the joining node makes the results
depend on the inputs, with the user's backward as their derivative. Must not know how a graph is compiled: the joining
node is an ordinary differentiable call.
"""

import dataclasses
import inspect
import operator
import types
from typing import Any

import torch
from torch.autograd.function import FunctionCtx, _SingleLevelFunction

from minicompile.capture.attributes import get_attribute
from minicompile.capture.break_kinds import Break
from minicompile.capture.calls import call, special
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.torch_rules import same_state, state_of
from minicompile.capture.tracer import Args, Keywords, Tracer

KIND = "custom autograd function"


class Context(FunctionCtx):
    """The `ctx` of a traced function: the user's attributes, and what the user's calls of PyTorch's methods left."""

    saved_tensors = property(operator.attrgetter("to_save"))

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.to_save: tuple[Any, ...] = ()
        self.dirty_tensors: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self.materialize_grads = True


@dataclasses.dataclass(eq=False)
class Join:
    """The call that joins results to inputs; takes the values that the backward reads, the inputs, the results.

    Attributes:
        backward: the user's backward as a graph: takes the gradients of the results and the values, returns one gradient
            (or `None`) for each input.
        outputs: which of inputs and results it returns; dirty: which of them are changed by the function.
        checked: which values autograd guards against changes (those of `save_for_backward`).
        once: the user's backward has no derivative; views: some output is a view, with a derivative that no view has.
    """

    name: str
    backward: torch.fx.GraphModule
    outputs: tuple[int, ...]
    dirty: tuple[int, ...]
    checked: tuple[int, ...]
    once: bool
    views: bool

    def __post_init__(self) -> None:
        self.__name__ = self.__qualname__ = self.name

    def __call__(self, values: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        kind = type(self.name, (JoinedOnce if self.once else Joined,), {})  # errors and `grad_fn` name the user's class
        return kind.apply(self, values, *tensors)


class Joined(torch.autograd.Function):
    """Results that exist already become results of this function."""

    @staticmethod
    def forward(ctx: Any, join: Join, values: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        """The results, as they are."""
        ctx.join, ctx.count = join, len(tensors)
        results = {id(tensors[place]) for place in join.dirty}
        # A view of a result, made when that had no history, is refused once it has one: what is kept is the memory.
        is_part = [isinstance(value, torch.Tensor) and id(value._base) in results for value in values]
        values = tuple(value.detach() if part else value for value, part in zip(values, is_part, strict=True))
        ctx.values = [None if place in join.checked else value for place, value in enumerate(values)]
        ctx.save_for_backward(*map(values.__getitem__, join.checked))
        ctx.mark_dirty(*(tensors[place] for place in join.dirty))
        return tuple(tensors[place] for place in join.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The user's backward."""
        values = list(ctx.values)
        saved = ctx.saved_tensors if ctx.join.checked else ()  # which a second backward may not read
        for place, value in zip(ctx.join.checked, saved, strict=True):
            values[place] = value
        found = ctx.join.backward(*gradients, *values)
        return None, None, *found, *(None,) * (ctx.count - len(found))


class JoinedOnce(Joined):
    """The same for a backward that cannot be differentiated."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The user's backward."""
        return Joined.backward(ctx, *gradients)


@special(getattr(torch.autograd.Function.apply, "__func__", vars(torch._C._FunctionBase)["apply"]))  # torch 2.15: written in C
def rule_apply(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`kind.apply(*inputs)`."""
    kind, *inputs = args
    if kwargs or not all(isinstance(vars(base).get(name, staticmethod(len)), (staticmethod, classmethod))
                         for base in kind.__mro__ for name in ("forward", "backward", "setup_context")):
        raise Break(KIND, f"`{kind.__name__}.apply` is called in a way that is not followed")
    if getattr(kind, "boxed_grads_call", False) or kind.clear_saved_tensors_on_access:  # the first not before torch 2.13
        raise Break(KIND, f"`{kind.__name__}` frees memory within its backward")
    if torch.is_inference_mode_enabled() and torch.is_grad_enabled():
        raise Break(KIND, f"`{kind.__name__}` is recorded by autograd under `inference_mode`, as no operator is")
    if tracer.graph.is_transformed():
        raise Break(KIND, f"`{kind.__name__}` is applied inside of a transform, of which it may have a rule of its own")
    try:
        return Application(tracer, kind, inputs).run()
    except Break as stop:
        raise Break(KIND, f"`{kind.__name__}`: {stop.reason}") from None


def is_combined(kind: type) -> bool:
    """Whether the forward fills the context itself."""
    return kind.setup_context is _SingleLevelFunction.setup_context


class Application:
    """One call of a custom function."""

    def __init__(self, tracer: Tracer, kind: type, inputs: list[Any]) -> None:
        self.tracer, self.kind = tracer, kind
        self.inputs = inputs = inputs if is_combined(kind) else self.with_defaults(inputs)
        self.tensors = [item for item in inputs if isinstance(item, FakeTensor)]
        tracer.fresh.add(id(Context))
        needs = tuple(isinstance(item, FakeTensor) and item.requires_grad for item in inputs)
        self.context = tracer.made(Context(needs))
        self.differentiable = torch.is_grad_enabled() and any(needs)

    def refuse(self, reason: str) -> Break:
        """A graph break at the call."""
        return Break(KIND, f"`{self.kind.__name__}` {reason}")

    def with_defaults(self, inputs: list[Any]) -> list[Any]:
        """The inputs and the defaults of the parameters that none was given for, as a `setup_context` sees them."""
        function = get_attribute(self.tracer, self.kind, "forward")
        if not isinstance(function, types.FunctionType) or function.__code__.co_kwonlyargcount:
            raise self.refuse("has a `forward` whose defaults are not followed")
        bound = [self.tracer.resolve(item) for item in self.tracer.bind(function, tuple(inputs), {}).values()]
        return [*bound[:-1], *bound[-1]] if function.__code__.co_flags & inspect.CO_VARARGS else bound

    def run(self) -> Any:
        """The result of the call."""
        result = self.forward()
        outputs = list(result) if type(result) is tuple else [result]
        fakes = [item for item in outputs if isinstance(item, FakeTensor)]
        if len({id(item) for item in fakes}) < len(fakes):
            raise self.refuse("returns a tensor twice")
        inputs = {id(item) for item in self.tensors}
        for item in fakes:
            own = not item.requires_grad or item._is_view()
            if id(item) not in inputs and not (own and self.tracer.sources.get(id(item)) is None):
                raise self.refuse("returns a tensor that is not its own")
        silent = {id(item) for item in self.context.non_differentiable}
        joined = [place for place, item in enumerate(outputs) if isinstance(item, FakeTensor) and id(item) not in silent
                  and (item.is_floating_point() or item.is_complex())] if self.differentiable else []
        replaced = dict(zip(joined, self.join(outputs, joined), strict=True)) if joined else {}
        for place, item in enumerate(outputs):
            outputs[place] = replaced[place] if place in replaced else self.without_gradient(item)
        return tuple(outputs) if type(result) is tuple else outputs[0]

    def forward(self) -> Any:
        """Run the user's forward without recording gradients."""
        tracer, kind = self.tracer, self.kind
        with tracer.graph.without_gradients(tracer.location()):
            function = get_attribute(tracer, kind, "forward")
            if is_combined(kind):
                return call(tracer, function, (self.context, *self.inputs), {})
            result = call(tracer, function, tuple(self.inputs), {})
            call(tracer, get_attribute(tracer, kind, "setup_context"), (self.context, tuple(self.inputs), result), {})
            return result

    def without_gradient(self, item: Any) -> Any:
        """A result that is not differentiable: an input comes back as another object, but for one that was changed and needs
        no gradient."""
        if not self.is_input(item):
            return item
        if item.requires_grad:
            return self.tracer.operation("call_method", "detach", (item,))
        is_changed = any(item is tensor for tensor in self.context.dirty_tensors)
        return item if is_changed else self.tracer.operation("call_method", "view_as", (item, item))

    def join(self, outputs: list[Any], joined: list[int]) -> tuple[Any, ...]:
        """The differentiable results, as results of the joining node."""
        tracer, context = self.tracer, self.context
        if not context.materialize_grads and len(outputs) > 1:
            raise self.refuse("takes missing gradients as `None`")
        before = state_of(tracer)
        on_cpu, on_cuda = (torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda"))
        with tracer.graph.inner() as inner, torch.no_grad(), on_cpu, on_cuda:  # as autograd calls it
            with tracer.graph.fake_mode:  # ahead of sizes that zeros ask for
                given = {place: inner.placeholder(torch.empty_like(outputs[place])) for place in joined}
            gradients = [given[place] if place in given else self.zeros(item) for place, item in enumerate(outputs)]
            backward, once = self.backward_function()
            found = call(tracer, backward, (context, *gradients), {})
            module = inner.finish(self.checked_gradients(found))
        if not same_state(before, state_of(tracer)):
            raise self.refuse("has side effects in its backward")
        values = tuple(inner.lifted())
        saved = {id(item) for item in context.saved_tensors}
        tensors = [*self.tensors, *(outputs[place] for place in joined if not self.is_input(outputs[place]))]
        tracer.graph.quiet_leaves.difference_update(map(id, tensors))  # views by the forward, which get a derivative here
        places = {id(item): place for place, item in enumerate(tensors)}
        changed = {id(item) for item in context.dirty_tensors} | {
            id(item) for item in tensors[len(self.tensors):] if not item._is_view()}
        results = tuple(places[id(outputs[place])] for place in joined)
        dirty = tuple(place for place, item in enumerate(tensors) if id(item) in changed)
        join = Join(
            self.kind.__name__, module, results, dirty, views=not set(results) <= set(dirty),
            checked=tuple(place for place, item in enumerate(values) if id(item) in saved),
            once=once)
        quiet = tracer.graph.quiet_leaves & set(map(id, values))  # no derivative is asked of what is kept
        tracer.graph.quiet_leaves -= quiet
        replaced = tuple(tracer.operation("call_function", join, (values, *tensors)))
        tracer.graph.quiet_leaves |= quiet
        return replaced

    def is_input(self, item: Any) -> bool:
        """Whether a result is one of the inputs."""
        return any(item is tensor for tensor in self.tensors)

    def backward_function(self) -> tuple[Any, bool]:
        """The user's backward without the wrapper that forbids to differentiate it, and whether it has that."""
        given = get_attribute(self.tracer, self.kind, "backward")
        function = getattr(given, "__func__", given)  # of a class method
        if function.__globals__.get("__name__") != "torch.autograd.function" or not hasattr(function, "__wrapped__"):
            return given, False
        inner = function.__wrapped__
        return inner if function is given else types.MethodType(inner, self.kind), True

    def zeros(self, output: Any) -> Any:
        """What stands for the gradient of a result that gets none."""
        if not isinstance(output, FakeTensor):
            return None
        return self.tracer.operation("call_function", torch.zeros, (tuple(output.shape),),
                                     {"dtype": output.dtype, "device": output.device})

    def checked_gradients(self, found: Any) -> list[Any]:
        """One gradient for each tensor input, from what the user's backward returned."""
        gradients = list(found) if type(found) in (tuple, list) else [found]
        count = len(self.inputs)
        if len(gradients) < count or any(item is not None for item in gradients[count:]):
            raise self.refuse("returns another number of gradients than it has inputs")
        for gradient, item in zip(gradients, self.inputs, strict=False):
            if gradient is not None and not (isinstance(gradient, FakeTensor) and isinstance(item, FakeTensor)):
                raise self.refuse("returns a gradient of something that is no tensor")
        return [gradient for gradient, item in zip(gradients, self.inputs, strict=False) if isinstance(item, FakeTensor)]
