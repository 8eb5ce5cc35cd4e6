"""Binds a forward and a backward graph to autograd: plain inputs in, what eager would have returned out.

One `torch.autograd.Function` per graph that needs gradients; a graph that needs none is called straight. This module must
not compile anything and must not look into the graphs: the `CallPlan` says all.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minicompile.ir.graph import (
    ConstantOutput,
    FreshOutput,
    InputOutput,
    MutatedInput,
    OutputBinding,
    RepeatedOutput,
    SizeOutput,
    ViewOutput,
)
from minicompile.ir.program import FlatCall
from minicompile.runtime.call_plan import CallPlan, Tangent
from minicompile.runtime.connected_outputs import connected, note_hooks
from minicompile.runtime.kept_values import Kept, noticed_as, noticing, refuse_changes, still_kept
from minicompile.runtime.routed_gradients import input_groups, routed, shows
from minicompile.runtime.second_derivatives import Rerun, Source, is_more_than_values

# Private, the same in torch 2.11 to 2.15: inside, operators neither record gradients nor track views (tensors made there
# are plain) nor count versions, and dispatch is shorter.
below_autograd = torch._C._AutoDispatchBelowADInplaceOrView


def run_unrecorded(call: FlatCall, arguments: list[Any]) -> Any:
    """Run a flat graph so that autograd sees nothing of it; products with `out=` ask for the grad mode themselves."""
    recording = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        with below_autograd():
            return call(arguments)
    finally:
        torch._C._set_grad_enabled(recording)


def bind(
    plan: CallPlan, module: torch.fx.GraphModule, forward_call: FlatCall, half_call: Callable[[str], FlatCall] | None = None
) -> Callable[..., tuple[Any, ...]]:
    """The callable that stands for a captured graph, whose `module` it is: takes its inputs, returns its flat outputs.

    `forward_call`, and what `half_call` returns for the name of another half when it is first needed, run the flat graphs on
    lists of arguments. Halves are `backward`, `to_inputs` and `to_sources`, with the numbers of the tangents that come in where
    some do not.
    """
    if plan.tangents is None:
        call = _without_gradient(plan, forward_call)
    else:
        assert half_call is not None
        call = _with_gradient(plan, plan.tangents, Rerun(plan, module), forward_call, functools.cache(half_call))
    build = output_builder(plan)
    return call if build is None else lambda *inputs: build(inputs, call(*inputs))


def _with_gradient(
    plan: CallPlan, tangents: tuple[Tangent, ...], rerun: Rerun, forward_call: FlatCall, half_call: Callable[[str], FlatCall]
) -> Callable[..., tuple[Any, ...]]:
    function = _autograd_function(plan, tangents, rerun, forward_call, half_call)
    # `Function.apply` looks at every argument in Python before it calls this.
    apply = super(torch.autograd.Function, function).apply  # type: ignore[misc]  # torch overrides a classmethod of C
    connections, gradients = plan.binding.connections, len(plan.binding.differentiable_inputs)
    mutations = {entry.output_index: entry for entry in plan.binding.mutated_inputs if not entry.in_graph}
    (groups, unreached), positions = input_groups(plan), [tangent.position for tangent in tangents]
    if not connections and not groups and not unreached:
        return apply

    def call(*inputs: Any) -> tuple[Any, ...]:
        results = apply(*(value.detach() if i in unreached else value for i, value in enumerate(inputs)) if unreached else inputs)
        node = results[positions[0]].grad_fn
        if unreached:
            node.inputs = node.inputs and rerun.notice(inputs, node.inputs.written)  # weak references, to what stays alive
        outputs = routed(groups, inputs, results, positions) if shows(groups, inputs, len(positions)) else results
        if connections:
            outputs = connected(connections, outputs, gradients, node, functools.partial(new_value, inputs))
        node.noticed = noticed_as(node.noticed, results, outputs)
        return outputs

    def new_value(inputs: tuple[Any, ...], index: int, value: Any) -> Any:
        return copy_back(mutations[index], inputs, value) if index in mutations else value

    return call


def _without_gradient(plan: CallPlan, forward_call: FlatCall) -> Callable[..., tuple[Any, ...]]:
    if plan.watches_inputs:
        return lambda *inputs: run_unrecorded(forward_call, list(inputs))
    return lambda *inputs: forward_call(list(inputs))


def _autograd_function(
    plan: CallPlan, tangents: tuple[Tangent, ...], rerun: Rerun, forward_call: FlatCall, half_call: Callable[[str], FlatCall]
) -> type[torch.autograd.Function]:
    binding, user_count = plan.binding, plan.user_results
    saved_inputs = binding.saved_inputs
    saved_tensors, saved_sizes = split_saved(plan)
    silent = tuple(i for i in range(user_count) if i not in binding.differentiable_outputs)
    gradient_slots = binding.differentiable_inputs
    first_tangent = len(binding.saved) + len(saved_inputs)
    count_writes, sizes_vary = counter_of_writes(plan), any(tangent.shape is None for tangent in tangents)
    notice = noticing(binding)

    def forward(ctx: Any, *inputs: Any) -> Any:
        written = rerun.before(inputs)
        with below_autograd():
            results = forward_call(list(inputs))
        count_writes(inputs)  # before the saving: what is saved may be an input with its new value
        ctx.save_for_backward(*[results[i] for i in saved_tensors], *[inputs[i] for i in saved_inputs])
        if saved_sizes:
            ctx.sizes = [results[i] for i in saved_sizes]
        if silent:
            ctx.mark_non_differentiable(*[results[i] for i in silent if isinstance(results[i], torch.Tensor)])
        ctx.set_materialize_grads(False)
        ctx.input_count, ctx.split_tasks, ctx.hooked = len(inputs), {}, set()
        if sizes_vary:
            ctx.layouts = [gradient_layout(results[t.position], t.strides is None) for t in tangents]
        ctx.noticed, ctx.inputs = notice(inputs, results), rerun.notice(inputs, written)
        return tuple(results[:user_count])

    def saved_values(ctx: Any, given: int) -> list[Any]:
        """What the forward kept; after a backward from other outputs, which freed it, the part that this one needs."""
        kept: Kept | None = getattr(ctx, "kept", None)
        refuse_changes(ctx.noticed, given >> first_tangent)
        if kept is not None and not kept.closed & given >> first_tangent:
            needed = functools.reduce(operator.or_, (sources for sources in plan.gradient_sources if sources & given), 0)
            values = kept.unchanged(needed)
        else:
            values = list(ctx.saved_tensors)
            values[len(saved_tensors) : len(saved_tensors)] = ctx.sizes if saved_sizes else ()
        if not torch._C._autograd._get_current_graph_task_keep_graph() and is_last(ctx):
            ctx.kept = still_kept(kept, values, binding.history.shared, given >> first_tangent)
        return values

    def differentiate(ctx: Any, grads: Any, half: str, sources: Mapping[int, Source]) -> tuple[Any, ...]:
        """What the compiled backward makes of gradients by forward output; `grads.get` where some are missing."""
        arguments = saved_values(ctx, came(tangents, grads) << first_tangent)
        given = [grads.get(tangent.position) for tangent in tangents]
        if torch.is_grad_enabled() or any(map(is_more_than_values, given)):
            return rerun.gradients(ctx.inputs, grads, sources)
        if is_last(ctx):
            ctx.maybe_clear_saved_tensors()  # the program alone holds what was kept, and frees each value once it is read
        for number, (tangent, grad) in enumerate(zip(tangents, given, strict=True)):
            if grad is not None or tangent.shape is None:
                shape, strides = ctx.layouts[number] if tangent.shape is None else (tangent.shape, tangent.strides)
                arguments.append(coerced(tangent, shape, strides, grad))
        if any(grad is None for grad in given):
            half = "_".join((half, "of", *(str(number) for number, grad in enumerate(given) if grad is not None)))
        call = half_call(half)
        return run_unrecorded(call, arguments)

    def gradients(ctx: Any, grads: dict[int, Any]) -> dict[int, Any]:
        """Gradients by input."""
        given = came(tangents, grads) << first_tangent
        sources = ctx.split_tasks.pop(torch._C._current_graph_task_id(), None)
        found = differentiate(ctx, grads, "backward" if sources is None else "to_inputs", sources or {})
        by_input = dict(zip(gradient_slots, found))  # differentiated again, there are more
        return by_input | {slot: None for slot, sources in zip(gradient_slots, plan.gradient_sources) if not sources & given}

    def backward(ctx: Any, *grads: Any) -> Any:
        by_output = dict(enumerate(grads))
        found = gradients(ctx, by_output) if came(tangents, by_output) else {}
        return tuple(map(found.get, range(ctx.input_count)))

    functions = (forward, backward, differentiate, gradients)
    members = {function.__name__: staticmethod(function) for function in functions}
    function = type(f"Compiled_{plan.name}", (torch.autograd.Function,), members)
    note_hooks(function, lambda node, number: (node, number))
    return function


def is_last(ctx: Any) -> bool:
    """Whether the running backward comes to the node of a call itself: what passes through its results is found before."""
    return torch._C._current_graph_task_id() not in ctx.split_tasks


def came(tangents: Sequence[Tangent], grads: Any) -> int:
    """The bits of the tangents that there are, by forward output."""
    return sum(1 << number for number, tangent in enumerate(tangents) if grads.get(tangent.position) is not None)


def gradient_layout(output: torch.Tensor, as_output: bool) -> tuple[Any, Any]:
    """Shape and strides of the gradient of an output of varying sizes: row-major ones unless they are the output's."""
    return output.shape, (output if as_output or output.is_contiguous() else torch.empty(output.shape, device="meta")).stride()


def coerced(tangent: Tangent, shape: Any, strides: Any, grad: torch.Tensor | None) -> torch.Tensor:
    """An incoming gradient in the layout that the backward was compiled for; zeros for none."""
    if grad is None:
        return torch.empty_strided(shape, strides, dtype=tangent.dtype, device=tangent.device).zero_()
    if type(grad) is torch.Tensor and grad.stride() == strides and grad.dtype == tangent.dtype:
        if not grad.is_conj() and not grad.is_neg() and not grad._is_zerotensor():
            return grad
    return torch.empty_strided(shape, strides, dtype=tangent.dtype, device=tangent.device).copy_(grad)


def split_saved(plan: CallPlan) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The saved forward outputs that are tensors, and those that are numbers."""
    tensors = tuple(i for i in plan.binding.saved if plan.tensor_results[i])
    return tensors, tuple(i for i in plan.binding.saved if i not in tensors)


def counter_of_writes(plan: CallPlan) -> Callable[[tuple[Any, ...]], None]:
    """What tells autograd of the inputs that the forward's kernels wrote to; inference tensors count nothing."""
    counted = [mutated.input_index for mutated in plan.binding.mutated_inputs if mutated.in_graph and mutated.counted]
    if not counted:
        return lambda inputs: None
    written = operator.itemgetter(*counted)  # of one place it gives a tensor, of several a tuple
    return lambda inputs: torch.autograd.graph.increment_version(written(inputs))


def output_builder(plan: CallPlan) -> Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]] | None:
    """From inputs and forward results to the user's outputs; `None` if the results are the outputs already."""
    binding = plan.binding
    mutations = binding.mutated_inputs
    direct = [b.index if isinstance(b, FreshOutput) else -1 for b in binding.outputs]
    extra = len(plan.tensor_results) if plan.tangents is None else plan.user_results
    if not mutations and direct == list(range(len(direct))) and extra == len(direct):
        return None
    connected_already = {index for connection in binding.connections for index in connection.sources}
    copied = tuple(m for m in mutations if not m.in_graph and m.output_index not in connected_already)
    bindings = binding.outputs
    delayed = [i for i, b in enumerate(bindings) if isinstance(b, (ViewOutput, RepeatedOutput))]
    delayed.sort(key=functools.partial(depth, bindings))

    count_writes = counter_of_writes(plan) if plan.tangents is None else None

    def build(inputs: tuple[Any, ...], results: tuple[Any, ...]) -> tuple[Any, ...]:
        if count_writes is not None:
            count_writes(inputs)
        for mutated in copied:
            copy_back(mutated, inputs, results[mutated.output_index])
        outputs: list[Any] = []
        for entry in bindings:
            if isinstance(entry, FreshOutput):
                outputs.append(results[entry.index])
            elif isinstance(entry, InputOutput):
                outputs.append(inputs[entry.index])
            else:
                outputs.append(entry.value if isinstance(entry, ConstantOutput) else None)
        for position in delayed:
            delayed_binding = bindings[position]
            if isinstance(delayed_binding, ViewOutput):
                bases = {"input": inputs, "output": outputs, "hidden": results}[delayed_binding.base]
                outputs[position] = rebuilt_view(delayed_binding, bases[delayed_binding.base_index], results)
            elif isinstance(delayed_binding, RepeatedOutput):
                outputs[position] = outputs[delayed_binding.index]
        return tuple(outputs)

    return build


def depth(bindings: Sequence[OutputBinding], position: int) -> int:
    """How many other outputs must be there before this one can be made."""
    entry = bindings[position]
    if isinstance(entry, RepeatedOutput):
        return 1 + depth(bindings, entry.index)
    return 1 + depth(bindings, entry.base_index) if isinstance(entry, ViewOutput) and entry.base == "output" else 0


def copy_back(entry: MutatedInput, inputs: tuple[Any, ...], value: torch.Tensor) -> Any:
    """Write a new value into an input, which is returned, with autograd watching if the user's write was watched."""
    written = inputs[entry.input_index]
    with torch.set_grad_enabled(entry.requires_grad):
        (written if entry.counted else written.data).copy_(value)
    return written


def rebuilt_view(binding: ViewOutput, base: torch.Tensor, results: Sequence[Any]) -> torch.Tensor:
    """The view of `base` that a binding describes; the forward's results hold the numbers that vary."""
    if binding.size_outputs:
        binding = binding.mapped(lambda number: results[number.index] if isinstance(number, SizeOutput) else number)
    with torch.set_grad_enabled(binding.recorded):
        if not binding.view_calls:
            value: Any = base.as_strided(binding.sizes, binding.strides, base.storage_offset() + binding.offset)
        else:
            value = base
            for target, args, kwargs in binding.view_calls:
                value = value[args[0]] if target is operator.getitem else target(value, *args, **kwargs)
        return value if binding.requires_grad or not value.requires_grad else value.detach()
