"""Rules for functions of torch, and one of einops, that are written in Python and captured otherwise than by interpreting them.

`torch.utils.checkpoint` becomes a mark on the nodes of its region, which the graph stage honours. Must not decide what a
graph break does.
"""

import contextvars
import functools
import inspect
import operator
import warnings
import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops.associative_scan import associative_scan
from torch.utils import checkpoint as checkpointing
from torch.utils._pytree import tree_flatten, tree_leaves
from torch.utils.hooks import RemovableHandle

from minicompile.capture.attributes import get_attribute, set_attribute
from minicompile.capture.break_kinds import Break, RunEager
from minicompile.capture.builtin_rules import cell_value
from minicompile.capture.calls import CLOSURE_RULES, call, call_torch, special
from minicompile.capture.iteration import drain
from minicompile.capture.operators import note_identity
from minicompile.capture.side_effects import contents
from minicompile.capture.symbolic_float import SymbolicFloat
from minicompile.capture.symbolic_size import EXAMPLES, is_symbolic
from minicompile.capture.texts import leaves
from minicompile.capture.torch_interface import (
    FakeTensor,
    any_autocast,
    compiling,
    is_of_optimizers,
    named,
    with_default_device,
)
from minicompile.capture.tracer import Args, Keywords, Tracer
from minicompile.capture.values import CONSTANT_TYPES, Lazy, force, guard_absent

POINTWISE = {operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, torch.add, torch.sub,
             torch.mul, torch.div, torch.exp, torch.maximum, torch.minimum, torch.logaddexp, torch.where}
CHECKPOINT = getattr(checkpointing.checkpoint, "__wrapped__", checkpointing.checkpoint)
CHECKPOINT_OPTIONS = {"preserve_rng_state": True} | (CHECKPOINT.__kwdefaults__ or {})
FOLLOWED_OPTIONS = ("use_reentrant", "preserve_rng_state", "determinism_check", "early_stop", "context_fn")
SELECTIVE = (checkpointing._CachingTorchDispatchMode, checkpointing._CachedTorchDispatchMode)
PRIORITY = getattr(torch.nn.attention, "_sdpa_kernel_uses_priority", contextvars.ContextVar("not before torch 2.15"))
FAST_PATH = torch.backends.mha.get_fastpath_enabled


@special(CHECKPOINT)
def rule_checkpoint(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=..., **kwargs)`."""
    if not args:
        raise Break("checkpoint", "`checkpoint` is called without a function")
    settings = {name: kwargs.get(name, default) for name, default in CHECKPOINT_OPTIONS.items()}
    rest = {name: value for name, value in kwargs.items() if name not in settings}
    return checkpointed(tracer, args[0], args[1:], rest, settings)


@special(*named("utils.checkpoint._checkpoint_impl"))
def rule_decorated(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """What a function calls that `checkpoint` has decorated, in torch 2.15."""
    function, inputs, keywords = args
    return checkpointed(tracer, function, inputs, keywords, {**CHECKPOINT_OPTIONS, **kwargs})


def checkpointed(tracer: Tracer, function: Any, args: Args, kwargs: Keywords, settings: Keywords) -> Any:
    """The result of `function(*args, **kwargs)`, its nodes marked."""
    given = settings["use_reentrant"]
    reentrant = True if given is None else given
    plain = all(settings[name] is CHECKPOINT_OPTIONS[name] for name in settings if name not in FOLLOWED_OPTIONS)
    if type(reentrant) is not bool or not plain or (reentrant and (kwargs or not some_input_needs_grad(tracer, args))):
        raise Break("checkpoint", "`checkpoint` is called in a way that warns, raises or is debugged")
    policy = policy_of(tracer, settings["context_fn"], reentrant)
    before = state_of(tracer)
    try:
        with tracer.graph.checkpointed(policy):
            result = call(tracer, function, args, kwargs)
    except Break as stop:
        raise Break("checkpoint", stop.reason) from None
    if torch.is_grad_enabled():
        if not same_state(before, state_of(tracer)):
            raise Break("checkpoint", "the checkpointed function has side effects, which happen again in the backward")
        if reentrant:
            check_reentrant_result(result)
    if given is None:
        warn_of_the_default_kind()
    return result


def policy_of(tracer: Tracer, make_contexts: Any, reentrant: bool) -> Any:
    """What a selective checkpoint asks of each operator, whether its result is kept; `None` of a plain one."""
    if make_contexts is CHECKPOINT_OPTIONS["context_fn"]:
        return None
    contexts = call(tracer, make_contexts, (), {})
    if reentrant or type(contexts) is not tuple or tuple(map(type, contexts)) != SELECTIVE:
        raise Break("checkpoint", "`checkpoint` has contexts of its own")
    policy = contexts[0].policy_fn
    for cell in getattr(policy, "__closure__", None) or ():
        if type(cell.cell_contents) is Lazy:  # it is asked when the tracer is done
            cell.cell_contents = tracer.resolve(cell.cell_contents)
        force(tracer, cell.cell_contents)
    return policy


@special(checkpointing.create_selective_checkpoint_contexts)
def rule_selective(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """The contexts of a selective checkpoint; of the first one the policy is taken."""
    force(tracer, args)
    try:
        return checkpointing.create_selective_checkpoint_contexts(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise Break("checkpoint", f"the policy is refused: {error}") from None


def warn_of_the_default_kind() -> None:
    """Warn in PyTorch's words that `use_reentrant` should be given."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CHECKPOINT(lambda: None)
    try:
        warnings.warn(caught[0].message)
    except Warning:  # where the user's filters make an error of it
        raise Break("checkpoint", "`checkpoint` raises where `use_reentrant` is not given") from None


@special(PRIORITY.set)
def rule_priority(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`sdpa_kernel` (torch 2.15) notes here whether its kernels have an order: they have none, as outside."""
    if args[0] is not PRIORITY.get():
        raise Break("unknown call", "`sdpa_kernel` gives its kernels an order")
    return contextvars.copy_context().run(PRIORITY.set, args[0])


special(PRIORITY.reset)(lambda *_: None)


def some_input_needs_grad(tracer: Tracer, args: Args) -> bool:
    """Whether the reentrant kind of checkpoint computes gradients as the other one does: tensors come as they are."""
    force(tracer, args)
    known = all(isinstance(item, FakeTensor) or type(item) in CONSTANT_TYPES or callable(item) for item in args)
    return known and any(item.requires_grad for item in args if isinstance(item, FakeTensor))


def check_reentrant_result(result: Any) -> None:
    """Refuse results whose need of gradients the reentrant kind of checkpoint changes."""
    for item in result if type(result) is tuple else (result,):
        if isinstance(item, FakeTensor) and item.is_floating_point() and not item.requires_grad:
            raise Break("checkpoint", "a result of a reentrant `checkpoint` is detached inside of it")
        if not isinstance(item, FakeTensor) and type(item) not in CONSTANT_TYPES:
            raise Break("checkpoint", "a reentrant `checkpoint` returns more than tensors")


def state_of(tracer: Tracer) -> dict[Any, Any]:
    """What a traced function can change: versions of tensors, containers, attributes and globals."""
    state: dict[Any, Any] = {}
    for key, entry in tracer.graph.traced.items():
        if isinstance(entry.value, FakeTensor) and not entry.value.is_inference():
            if entry.source is None or entry.value._version != entry.version:
                state["tensor" if entry.source is None else "input", key] = entry.value._version
    for shadow in tracer.effects.changed_shadows():
        held = contents(shadow.copy)
        state["shadow", id(shadow)] = len(held)
        items = held.items() if isinstance(held, dict) else enumerate(held)
        state.update((("shadow", id(shadow), key), item) for key, item in items)
    for table in (tracer.effects.attributes, tracer.effects.globals):
        state.update((("store", key), value) for key, (_, value) in table.items())
    return state


def same_state(before: dict[Any, Any], after: dict[Any, Any]) -> bool:
    """Whether nothing changed but for tensors that are new."""
    if any(key not in before and key[0] != "tensor" for key in after):
        return False
    return all(key in after and is_identical(value, after[key]) for key, value in before.items())


def is_identical(one: Any, other: Any) -> bool:
    """Whether two snapshots hold the same value, without asking tensors whether they are equal."""
    return one is other or (type(one) in CONSTANT_TYPES and type(one) is type(other) and bool(one == other))


@special(torch.nn.utils.stateless._untie_named_tensors_map)
def rule_untie(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """The tensors that `functional_call` puts in place; one given for a tied weight goes under every name of that weight."""
    module, given = args
    named: dict[str, Any] = {}
    for reader in ("named_parameters", "named_buffers"):
        named.update(drain(tracer, call(tracer, get_attribute(tracer, module, reader), (), {"remove_duplicate": False})))
    force(tracer, given)
    untied = tracer.made(dict(given))
    for place, (name, tensor) in enumerate(named.items()):
        for other, earlier in list(named.items())[:place]:
            if earlier is tensor and (name in given or other in given):
                if name in given and other in given and given[name] is not given[other]:
                    raise Break("torch.func transform", "`functional_call` is given two tensors for tied weights")
                untied[name] = untied[other] = given.get(name, given.get(other))
            elif earlier is not tensor and earlier.shape == tensor.shape and earlier.dtype == tensor.dtype:
                note_identity(tracer, tensor, earlier)
    return untied


@special(F.batch_norm)
def rule_batch_norm(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """A momentum that varies (of modules with `momentum=None`) moves the running statistics outside of the operator, which
    takes constants only."""
    given = inspect.signature(F.batch_norm).bind(*args, **kwargs).arguments
    momentum, running = given.get("momentum"), [given["running_mean"], given["running_var"]]
    moves = type(momentum) is SymbolicFloat and given.get("training") and 0 not in given["input"].shape
    if not moves or running[0] is None:
        return tracer.operation("call_function", F.batch_norm, args, kwargs)
    now = [tracer.operation("call_function", torch.zeros_like, (old,)) for old in running]
    given.update(running_mean=now[0], running_var=now[1], momentum=1.0)
    result = tracer.operation("call_function", F.batch_norm, (), given)
    for old, new in zip(running, now, strict=True):
        tracer.operation("call_method", "mul_", (old, operator.sub(1, momentum)))
        tracer.operation("call_method", "add_", (old, tracer.operation("call_method", "mul", (new, momentum))))
    return result


def averaging(self: Any, input: torch.Tensor) -> torch.Tensor:
    """`forward` of a batch norm in training that averages over all batches, whose number does not leave the graph."""
    self._check_input_dim(input)
    self.num_batches_tracked.add_(1)
    mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
    result = F.batch_norm(input, mean, variance, self.weight, self.bias, True, 1.0, self.eps)
    share = 1.0 / self.num_batches_tracked
    self.running_mean.mul_(1 - share).add_(mean * share)
    self.running_var.mul_(1 - share).add_(variance * share)
    return result


def rule_batch_norm_module(tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Any:
    """`forward` of a batch norm, which looks at the number of batches where `momentum` is `None`."""
    module, input = *args, *kwargs.values()
    averages = get_attribute(tracer, module, "momentum") is None and all(
        get_attribute(tracer, module, name) for name in ("training", "track_running_stats"))
    counted = averages and get_attribute(tracer, module, "num_batches_tracked") is not None
    seen = counted and isinstance(input, FakeTensor) and 0 not in input.shape
    return tracer.inline(averaging if seen else function, (module, input), {})


CLOSURE_RULES["torch.nn.modules.batchnorm", "_BatchNorm.forward"] = rule_batch_norm_module


def is_symmetric(self: Any, value: torch.Tensor) -> torch.Tensor:
    """`check` of the constraint that a square matrix is symmetric."""
    return torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


def is_positive_definite(self: Any, value: torch.Tensor) -> torch.Tensor:
    """`check` of the constraint that a square matrix is positive definite, without a branch on whether it is symmetric."""
    symmetric = is_symmetric(self, value)
    return torch.where(symmetric.all(), torch.linalg.cholesky_ex(value).info.eq(0), symmetric)


def of_square(check: Any, tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Any:
    """What a constraint's `check` says of matrices, as `check` here says it of square ones."""
    value = args[-1]
    fits = isinstance(value, FakeTensor) and value.dim() > 1 and value.shape[-2] == value.shape[-1]
    return tracer.inline(check if fits else function, args, kwargs)


for name, check in (("_Symmetric.check", is_symmetric), ("_PositiveDefinite.check", is_positive_definite)):
    CLOSURE_RULES["torch.distributions.constraints", name] = functools.partial(of_square, check)


def covariance(input: torch.Tensor, correction: int = 1) -> torch.Tensor:
    """`cov` without weights, whose own checks look at values."""
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    count = rows.shape[1]
    centred = rows - rows.sum(1, keepdim=True) / count
    return (centred.mm(centred.t()) / (count - correction)).squeeze()


def correlation(input: torch.Tensor) -> torch.Tensor:
    """`corrcoef`."""
    found = covariance(input)
    if not found.dim():
        return found / found
    deviation = found.diagonal().sqrt()
    return (found / deviation.unsqueeze(1) / deviation).clamp(-1, 1)


def without_weights(function: Any, plain: Any, tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`function` as `plain` computes it, of real numbers and where there are degrees of freedom; eager warns of others."""
    force(tracer, (args, kwargs))
    input, correction = next(iter((*args, *kwargs.values())), None), kwargs.get("correction", 1)
    fits = isinstance(input, FakeTensor) and input.is_floating_point() and input.dim() <= 2 and type(correction) is int
    plainly = len(args) + ("input" in kwargs) == 1 and kwargs.keys() <= inspect.signature(plain).parameters.keys()
    if not fits or not plainly or not (input.shape[-1] if input.dim() else 1) > max(correction, 0) or 0 in input.shape:
        return tracer.operation("call_function", function, args, kwargs)
    return call(tracer, plain, args, kwargs)


special(torch.cov)(functools.partial(without_weights, torch.cov, covariance))
special(torch.corrcoef)(functools.partial(without_weights, torch.corrcoef, correlation))


def rule_tensor_class(kind: Any, tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`torch.Tensor([1.0, 2.0])` and `torch.LongTensor(3, 4)`: of numbers, or of sizes with nothing in it."""
    force(tracer, args)
    given = {"dtype": torch.get_default_dtype() if kind is torch.Tensor else kind.dtype, "device": "cpu"}
    if not kwargs and len(args) == 1 and type(args[0]) in (list, tuple):
        return call(tracer, torch.tensor, args, given)
    sizes = args[0] if len(args) == 1 and type(args[0]) is torch.Size else args or (0,)
    if kwargs or not all(type(size) is int or is_symbolic(size) for size in sizes):
        raise Break("unknown call", f"`{kind.__name__}` is made")
    return call(tracer, torch.empty, (tuple(sizes),), given)


for tensor_class in (torch.Tensor, *(kind for kind in torch._tensor_classes if str(kind).count(".") == 1)):
    special(tensor_class)(functools.partial(rule_tensor_class, tensor_class))


@special(torch.autograd.Variable)
def rule_variable(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`Variable(x)`, as programs for PyTorch before 0.4 wrap tensors: `x.detach()`."""
    force(tracer, (args, kwargs))
    given = dict(zip(("data", "requires_grad"), args)) | kwargs
    data, wanted = given.pop("data", None), given.pop("requires_grad", False)
    if given or len(args) > 2 or not isinstance(data, FakeTensor) or type(wanted) is not bool:
        raise Break("unknown call", "`Variable` is made of anything but a tensor")
    found = call(tracer, torch.Tensor.detach, (data,), {})
    return call(tracer, torch.Tensor.requires_grad_, (found,), {}) if wanted else found


def rule_tensor(maker: Any, tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`torch.tensor`; of tensors in a list and numbers that vary, of which it makes constants, those put side by side."""
    force(tracer, (args, kwargs))
    given = with_default_device(maker, kwargs)
    parts = list(leaves(args[0])) if len(args) == 1 and not isinstance(args[0], FakeTensor) else []
    tensors = [part for part in parts if isinstance(part, FakeTensor)]
    odd = any(part.dim() or part.requires_grad for part in tensors)  # eager warns where a gradient is lost
    numbers = all(isinstance(part, (FakeTensor, bool, int, float, complex)) or is_symbolic(part) for part in parts)
    if not (tensors or any(map(is_symbolic, parts))) or odd or not numbers or given.keys() - {"dtype", "device"}:
        return call_torch(tracer, maker, "operation", args, kwargs)
    examples = (EXAMPLES[type(part)] if is_symbolic(part) else part for part in parts)
    kinds = [part.dtype if isinstance(part, FakeTensor) else torch.tensor(part).dtype for part in examples]
    dtype = given.get("dtype") or functools.reduce(torch.promote_types, kinds)
    device = tensors[0].device if tensors else given.get("device")
    if any(part.device != device or torch.promote_types(part.dtype, dtype) != dtype for part in tensors):
        raise Break("tensor value", f"`torch.{maker.__name__}` asks for the values of tensors")

    def side_by_side(part: Any) -> Any:
        """The tensor of a list, or one element of it."""
        if isinstance(part, (list, tuple)):
            return tracer.operation("call_function", torch.stack, (list(map(side_by_side, part)),))
        if isinstance(part, FakeTensor):
            return tracer.operation("call_method", "to", (part, dtype))
        return tracer.operation("call_function", torch.full, ((), part), {"dtype": dtype, "device": device})

    return tracer.operation("call_method", "to", (side_by_side(args[0]), given.get("device") or "cpu"))


for maker in (torch.tensor, torch.as_tensor):
    special(maker)(functools.partial(rule_tensor, maker))


@special(torch.asarray)
def rule_asarray(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`torch.as_tensor` of a tensor without a gradient (by versions of PyTorch, another's is lost) or of Python's numbers."""
    force(tracer, (args, kwargs))
    given = list(leaves(args[0])) if len(args) == 1 else [None]
    numbers = all(type(part) in (bool, int, float, complex) or is_symbolic(part) for part in given)
    plain = numbers or (isinstance(args[0], FakeTensor) and not args[0].requires_grad)
    if plain and not kwargs.keys() - {"dtype", "device"}:
        return rule_tensor(torch.as_tensor, tracer, args, kwargs)
    raise Break("real memory", "`torch.asarray` is called")


@special(torch.compiler.is_compiling)
def rule_is_compiling(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """What the attempt says, but to optimizers, which compute their numbers as in eager, to transforms of `torch.func`, which
    name what they make as in eager, and to a module with hooks that are called after an error too: its way for compilers
    leaves them out.

    A `TransformerEncoder` asks before it leaves out padding, which its way for compilers computes.
    """
    frame = tracer.frames[-1]
    if is_of_optimizers(frame.code) or frame.globals.get("__name__") == "torch._functorch.apis":
        return False
    calls_module = frame.code is torch.nn.Module._call_impl.__code__
    always_called = torch.nn.modules.module._global_forward_hooks_always_called
    if calls_module and (always_called or cell_value(tracer, frame.cells["self"])._forward_hooks_always_called):
        return False
    asks = frame.code is torch.nn.TransformerEncoder.forward.__code__ and not torch.is_autocast_enabled()
    if asks and not (torch.is_grad_enabled() and any(p.requires_grad for p in frame.variables["self"].layers[0].parameters())):
        reason = "a `TransformerEncoder` without gradients leaves out padding, in nested tensors"
        raise RunEager(reason) if len(tracer.frames) == 1 else Break("unsupported tensor", reason)
    told = torch.compiler.is_compiling()
    tracer.told_compiling |= told and not calls_module
    return told


@special(FAST_PATH)
def rule_fast_path(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """Whether one operator does all of an encoder's layer: only with masks, which that operator alone reads as it does."""
    code, variables = tracer.frames[-1].code, tracer.frames[-1].variables
    of_layer = code is torch.nn.TransformerEncoderLayer.forward.__code__ and not any_autocast()
    if of_layer and all(tracer.resolve(variables[name]) is None for name in ("src_mask", "src_key_padding_mask")):
        return False
    return tracer.inline(FAST_PATH, args, kwargs)


@special(torch._transformer_encoder_layer_fwd)
def rule_encoder_layer(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """That operator; under autocast (which on a GPU never comes here) the operators inside of it run in halves."""
    if any_autocast():
        raise Break("unknown call", "an encoder's layer in one operator looks at autocast by itself")
    return tracer.operation("call_function", torch._transformer_encoder_layer_fwd, args, kwargs)


@special(torch._native_multi_head_attention)
def rule_native_attention(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """The operator that does all of attention of a sequence to itself; without a mask, the operators that it consists of."""
    force(tracer, args)
    query, key, value, *settings, mask, need_weights, average, _ = args
    if mask is not None or query is not key or key is not value or any_autocast():
        return tracer.operation("call_function", torch._native_multi_head_attention, args)
    by_length = tracer.operation("call_method", "transpose", (query, 0, 1))
    result, weights = tracer.operation(
        "call_function", F.multi_head_attention_forward,
        (by_length, by_length, by_length, *settings[:4], None, None, False, 0.0, *settings[4:]),
        {"training": False, "need_weights": need_weights, "average_attn_weights": average})
    result = tracer.operation("call_method", "transpose", (result, 0, 1))
    return tracer.operation("call_method", "contiguous", (result,)), weights


@special(RemovableHandle.__init__)
def rule_handle(tracer: Tracer, args: Args, kwargs: Keywords) -> None:
    """The handle of a hook gets a number that nobody else has, the same one in each call: where the hook of an earlier call is
    still there, the guards do not hold."""
    (handle, hooks), more = args, kwargs.get("extra_dict", [])
    tables = [hooks, *(more if type(more) is list else [more])]
    number = RemovableHandle.next_id
    RemovableHandle.next_id += 1
    for table in tables:
        guard_absent(tracer, table, number)
    first, *others = (call(tracer, weakref.ref, (table,), {}) for table in tables)
    for name, value in ("hooks_dict_ref", first), ("id", number), ("extra_dict_ref", tuple(others)):
        set_attribute(tracer, handle, name, value)


@special(torch._C._group_tensors_by_device_and_dtype)
def rule_group_tensors(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """Sorts lists of tensors by device and dtype, for the `_foreach` functions."""
    lists = args[0]
    force(tracer, lists)
    groups: dict[Any, tuple[list[list[Any]], list[int]]] = {}
    for position, first in enumerate(lists[0]):
        group = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for part, items in zip(group[0], lists, strict=True):
            if items:
                part.append(items[position])
        group[1].append(position)
    for parts, _ in groups.values():
        for made in (parts, *parts):
            tracer.made(made)
    return tracer.made(groups)


@special(associative_scan)
def rule_associative_scan(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """Combines each element with the one 1, 2, 4, ... places before it, all of them at once."""
    given = inspect.signature(associative_scan).bind(*args, **kwargs).arguments
    combine, dim, operation = given["combine_fn"], given["dim"], functools.partial(tracer.operation, "call_function")
    leaves, structure = tree_flatten(given["xs"])
    if given.get("reverse") or any(type(leaf) is not FakeTensor or leaf.shape != leaves[0].shape for leaf in leaves):
        raise Break("higher-order operator", "`associative_scan` is called with `reverse` or tensors of different shapes")
    parts = [operation(torch.movedim, (leaf, dim, 0)) for leaf in leaves]
    step = 1
    while step < leaves[0].shape[dim]:
        sides = [[operation(operator.getitem, (part, side)) for part in parts] for side in (slice(-step), slice(step, None))]
        before = set(tracer.graph.graph.nodes)
        new = tree_leaves(call(tracer, combine, tuple(structure.unflatten(side) for side in sides), {}))
        if any(node.target not in POINTWISE for node in tracer.graph.graph.nodes if node not in before):
            raise Break("higher-order operator", "`associative_scan` combines by more than arithmetic")
        first = [operation(operator.getitem, (part, slice(step))) for part in parts]
        parts = [operation(torch.cat, (pair,)) for pair in zip(first, new, strict=True)]
        step *= 2
    return structure.unflatten([operation(torch.movedim, (part, 0, dim)) for part in parts])


@special(torch.inference_mode.__enter__)
def rule_enter_inference(tracer: Tracer, args: Args, kwargs: Keywords) -> None:
    """Where the mode is what it was, only gradients are switched; inference begins where the graph does, or breaks it."""
    scope, region = args[0], tracer.graph.inference
    inference, before = get_attribute(tracer, scope, "mode"), torch.is_grad_enabled()
    begins = inference != torch.is_inference_mode_enabled()
    late = begins and (not inference or (tracer.graph.operations and not region.used) or tracer.graph.inside is not None)
    if late or not region.allowed:
        raise Break("autograd call", "`inference_mode` is entered where a graph does not begin, or ends before it does")
    if begins:
        region.enter()
    tracer.graph.state_call(torch._C._set_grad_enabled, (not inference,), tracer.location())
    tracer.inference_scopes[id(scope)] = None if begins else before


@special(torch.inference_mode.__exit__)
def rule_leave_inference(tracer: Tracer, args: Args, kwargs: Keywords) -> None:
    """What entering has changed is as it was before."""
    if id(args[0]) not in tracer.inference_scopes:
        raise Break("autograd call", "an `inference_mode` is left in which the graph began")
    before = tracer.inference_scopes.pop(id(args[0]))
    if before is None:
        tracer.graph.inference.leave()
    else:
        tracer.graph.state_call(torch._C._set_grad_enabled, (before,), tracer.location())


def rule_get_backend(tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Any:
    """What einops calls on tensors of a class, which it finds, importing modules, when it first meets one: asked beforehand."""
    if any(isinstance(value, FakeTensor) for value in (*args, *kwargs.values())):
        with compiling(False):
            for real in (torch.empty(0), torch.nn.Parameter(torch.empty(0))):
                function(real)
    return tracer.inline(function, args, kwargs)


CLOSURE_RULES["einops._backends", "get_backend"] = rule_get_backend
