"""What a boolean mask selects (`x[m]`), as long as it stays inside: part of a graph as a tensor of the size of the mask.

Only the values of the mask know how long a selection is. Where it is combined element by element, written back by the same mask
(`x[m] += y[m]`) or reduced, a whole tensor says the same: at the places that were not selected stands a 1, and no gradient comes
through there. A selection lives on the stack and in local variables of a frame alone; wherever else one would get to, or be
asked for more than it knows, the call is traced again and the index is a graph break. Must not know how frames run.
"""

import inspect
import math
import operator
import sys
import types
from typing import Any, NoReturn

import torch
import torch.nn.functional as F

from minicompile.capture.calls import called_by_module, guard_tensor_method, is_called_plainly
from minicompile.capture.instruction import BINARY_SYMBOLS, VERSION, Instruction
from minicompile.capture.kinds import isinstance
from minicompile.capture.operators import BINARY, COMPARISONS, operator_functions
from minicompile.capture.shared_memory import is_pointwise
from minicompile.capture.side_effects import MISSING
from minicompile.capture.symbolic_size import is_symbolic
from minicompile.capture.torch_interface import FakeTensor, classify
from minicompile.capture.tracer import Args, Frame, Keywords, TraceAgain, Tracer
from minicompile.ir.operator_names import AUGMENTED
from minicompile.ir.replacements import split_at_mask

CONVERSIONS = frozenset("detach float double half bfloat16".split())
REDUCTIONS = frozenset("sum mean any all".split())
LOSSES = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits)
EXACT_ON_INTEGERS = frozenset("add sub mul neg abs iadd isub imul clone detach".split())
"""Operators on whole numbers that raise no error, whatever the values."""
ONLY_COMPUTE = REDUCTIONS | frozenset(
    "getitem clone detach reshape view flatten squeeze unsqueeze transpose permute expand arange zeros ones full zeros_like "
    "ones_like full_like int long bool float double half bfloat16 to type_as argmax argmin amax amin max min cumsum gather "
    "softmax log_softmax".split()
)
"""Operators that write nothing and draw no random numbers, beside those that compute each element from those at its place."""
MOVES = frozenset("COPY SWAP POP_TOP KW_NAMES LOAD_FAST LOAD_FAST_CHECK STORE_FAST CALL CALL_KW".split())
"""Instructions that only move what is on the stack, or look for selections themselves."""
UNARY = {"UNARY_NEGATIVE": operator.neg, "UNARY_INVERT": operator.invert}
LISTS_VARIABLES = frozenset("locals vars dir eval exec".split())
MODULES = frozenset({"torch.nn.modules.loss", "torch.nn.modules.activation"})


class Selection:
    """Stands for a tensor of what a mask selects.

    Attributes:
        whole: the values, and something else where nothing is selected; mask: which those are, spread over the dimensions.
        key: the user's own mask and how often it had been written; first: the dimension at which the mask begins.
        place: before how many other selections the first one was made that this one comes from.
    """

    def __init__(self, whole: Any, mask: Any, key: tuple[Any, int], first: int, place: int) -> None:
        self.whole, self.mask, self.key, self.first, self.place = whole, mask, key, first, place

    def like(self, whole: Any) -> "Selection":
        """Another one by the same mask."""
        return Selection(whole, self.mask, self.key, self.first, self.place)


class SelectionMethod:
    """A method of a selection that has been read but not called."""

    def __init__(self, owner: Selection, name: str) -> None:
        self.owner, self.name = owner, name


def escape(tracer: Tracer, selection: Selection | SelectionMethod) -> NoReturn:
    """Trace again without a selection; without any, where that has happened before."""
    root = selection.owner if type(selection) is SelectionMethod else selection
    raise TraceAgain(selects=root.place if tracer.selects == sys.maxsize else 0)


def select(tracer: Tracer, owner: Any, key: Any) -> Any:
    """`owner[key]` of a key with a boolean mask among slices and integers; `MISSING` for others."""
    fits = isinstance(owner, FakeTensor) and len(tracer.selections) < tracer.selects
    found = place_of(tracer, owner, key) if fits else None
    if found is None:
        return MISSING
    view, mask, first = found
    spread, after = mask, view.dim() - first - mask.dim()
    if after:
        spread = tracer.operation("call_method", "reshape", (mask, (*mask.shape, *[1] * after)))
    whole = tracer.operation("call_function", torch.where, (spread, view, view.dtype == torch.bool or 1))
    selection = Selection(whole, spread, (mask, mask._version), first, len(tracer.selections))
    tracer.selections.append(selection)
    return selection


def place_of(tracer: Tracer, owner: Any, key: Any) -> tuple[Any, Any, int] | None:
    """The view that a key's slices and integers make of a tensor, the mask in the key, and at which dimension it begins."""
    graph, parts = tracer.graph, split_at_mask(owner, key)
    if parts is None or graph.inside is not None or graph.data_aliases or graph.replaced:
        return None
    rest, mask, first = parts
    if owner.is_inference() or mask.is_inference() or torch.is_inference_mode_enabled():  # where nothing counts writes
        return None
    ends = (end for part in rest if type(part) is slice for end in (part.start, part.stop, part.step))
    if owner.is_complex() or owner.device != mask.device or any(isinstance(end, FakeTensor) for end in ends):
        return None
    view = owner
    if any(type(part) is not slice or part != slice(None) for part in rest):
        view = tracer.operation("call_function", operator.getitem, (owner, rest))
    return (view, mask, first) if mask.shape == view.shape[first : first + mask.dim()] else None


def assign(tracer: Tracer, owner: Any, key: Any, new: Selection) -> None:
    """`owner[key] = new`, by the mask that `new` was selected by."""
    found = place_of(tracer, owner, key) if isinstance(owner, FakeTensor) else None
    if found is None or not is_by(tracer, new, *found[1:]):
        escape(tracer, new)
    view = found[0]
    if (new.whole.shape, new.whole.dtype) != (view.shape, view.dtype):
        escape(tracer, new)
    both = tracer.operation("call_function", torch.where, (new.mask, new.whole, view))
    tracer.operation("call_method", "copy_", (view, both))


def is_by(tracer: Tracer, selection: Selection, mask: Any, first: int) -> bool:
    """Whether a mask at a dimension selects the same places."""
    nodes = [tracer.graph.traced[id(each)].node for each in (selection.key[0], mask)]
    unwritten = selection.key[0]._version == mask._version == selection.key[1]
    return first == selection.first and unwritten and (mask is selection.key[0] or None not in nodes and are_alike(*nodes))


def are_alike(one: Any, other: Any) -> bool:
    """Whether two operations, or arguments of these, give equal values: the same of the same, nothing written between."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, torch.fx.Node):
        nodes = list(one.graph.nodes)
        begin, end = sorted(map(nodes.index, (one, other)))
        same = one.op == other.op and one.target == other.target and are_alike((one.args, one.kwargs), (other.args, other.kwargs))
        return same and all(map(writes_nothing, nodes[begin : end + 1]))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_alike(item, other[key]) for key, item in one.items())
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(are_alike, one, other))
    if isinstance(one, slice):
        return are_alike((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    return bool(one == other)


def writes_nothing(node: torch.fx.Node) -> bool:
    """Whether an operation surely changes nothing and is no random number."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    known = (name in ONLY_COMPUTE or is_pointwise_name(name)) and "out" not in node.kwargs
    return node.op == "placeholder" or known and not any(item is True for item in (*node.args, *node.kwargs.values()))


def selections_among(*values: Any) -> list[Any]:
    """Those of some values that are selections, or methods of them."""
    return [value for value in values if type(value) in (Selection, SelectionMethod)]


def combined(tracer: Tracer, op: str, target: Any, args: Args, kwargs: Keywords) -> Selection:
    """An operation on the elements of selections by one mask, of numbers, and of tensors that have none of its dimensions."""
    name = target if isinstance(target, str) else target.__name__
    selections = selections_among(*args, *kwargs.values())
    first = selections[0]
    fits = (is_by(tracer, one, first.key[0], first.first) and one.whole.dim() == first.whole.dim() for one in selections)
    if kwargs.get("out") is not None or not all(fits):
        escape(tracer, first)

    def whole(value: Any) -> Any:
        return value.whole if type(value) is Selection else spread_out(tracer, value, first)

    positional, keywords = tuple(map(whole, args)), {key: whole(item) for key, item in kwargs.items()}
    result = tracer.operation(op, target, positional, keywords)
    for one in selections:
        if result is one.whole:
            return one  # changed in place
    integers = isinstance(result, FakeTensor) and not (result.is_floating_point() or result.dtype == torch.bool)
    if not isinstance(result, FakeTensor) or result.dim() != first.whole.dim() or integers and name not in EXACT_ON_INTEGERS:
        escape(tracer, first)
    made = first.like(result)
    made.place = min(one.place for one in selections)
    return made


def chosen(tracer: Tracer, selection: Selection, value: Any, other: Any) -> Any:
    """`value` where something is selected, elsewhere `other`; not after the mask was written."""
    if selection.key[0]._version != selection.key[1]:
        escape(tracer, selection)
    return tracer.operation("call_function", torch.where, (selection.mask, value, other))


def spread_out(tracer: Tracer, value: Any, selection: Selection) -> Any:
    """What stands for another operand beside a whole selection; a differentiable one is read only where something is selected."""
    if not isinstance(value, FakeTensor):
        if value is not None and type(value) not in (bool, int, float, str) and not is_symbolic(value):
            escape(tracer, selection)
        return value
    if value.dim() > selection.mask.dim() - selection.key[0].dim():
        escape(tracer, selection)
    if not value.requires_grad:
        return value
    if value.dtype != selection.whole.dtype or value.device != selection.whole.device:
        escape(tracer, selection)
    return chosen(tracer, selection, value, 1)


def by_instruction(tracer: Tracer, at: Instruction, *values: Any) -> Any:
    """What an instruction makes of values with a selection among them."""
    first, second = values[0], values[-1]
    found, name = selections_among(*values), at.name
    if any(type(one) is SelectionMethod for one in found):
        escape(tracer, found[0])
    if name == "BINARY_OP":
        symbol = BINARY_SYMBOLS[at.arg]
        in_place = symbol.endswith("=")
        if not in_place or type(first) is Selection:
            function = operator_functions(BINARY[symbol.removesuffix("=")])[in_place]
            return combined(tracer, "call_function", function, values, {})
    if name == "COMPARE_OP" and not (VERSION >= (3, 13) and at.arg & 16):  # which asks for the truth at once
        return combined(tracer, "call_function", COMPARISONS[at.value][0], values, {})
    if name in UNARY:
        return combined(tracer, "call_function", UNARY[name], values, {})
    if name in ("LOAD_ATTR", "LOAD_METHOD"):
        return SelectionMethod(first, at.value)
    if name == "STORE_SUBSCR" and type(first) is Selection and type(second) is not Selection:
        return assign(tracer, values[1], second, first)
    escape(tracer, found[0])


def reduced(tracer: Tracer, name: str, selection: Selection) -> Any:
    """The sum, mean, or truth of any or all, of everything that is selected."""
    whole, call = selection.whole, tracer.operation
    if name in ("any", "all"):
        return call("call_method", name, (chosen(tracer, selection, whole, name == "all"),))
    dtype = whole.dtype
    terms = chosen(tracer, selection, whole, False if dtype == torch.bool else 0)
    if name == "sum":
        return call("call_method", "sum", (terms,))
    if not dtype.is_floating_point:
        escape(tracer, selection)
    total = call("call_method", "sum", (terms,), {"dtype": torch.promote_types(dtype, torch.float32)})
    each = math.prod((*whole.shape[: selection.first], *whole.shape[selection.first + selection.key[0].dim() :]))
    count = call("call_function", operator.mul, (call("call_method", "sum", (selection.mask,)), each))
    return call("call_method", "to", (call("call_function", operator.truediv, (total, count)), dtype))


def arguments_of(tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Keywords:
    """The arguments of a function, with selections among them, by name."""
    try:
        return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except TypeError:
        escape(tracer, selections_among(*args, *kwargs.values())[0])


def loss_of(tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Any:
    """A loss that is computed for each element, of two selections of the same shape."""
    given = arguments_of(tracer, function, args, kwargs)
    selections, reduction = selections_among(*given.values()), given.pop("reduction", "mean")
    fits = len(selections) == 2 and selections[0].whole.shape == selections[1].whole.shape and not any(
        isinstance(item, FakeTensor) for item in given.values())
    if not fits or reduction not in ("none", "mean", "sum"):
        escape(tracer, selections[0])
    for key, item in given.items():
        if type(item) is Selection:  # some losses refuse values, also those that were not selected
            given[key] = item.like(chosen(tracer, item, item.whole, 1))
    losses = combined(tracer, "call_function", function, (), {**given, "reduction": "none"})
    return losses if reduction == "none" else reduced(tracer, reduction, losses)


def cross_entropy(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`F.cross_entropy` of selected rows and classes: of all rows, of which those that were not selected are ignored."""
    given = arguments_of(tracer, F.cross_entropy, args, kwargs)
    rows, classes, ignored = given["input"], given["target"], given.get("ignore_index", -100)
    some = selections_among(*given.values())
    fits = len(some) == 2 and rows is some[0] and classes is some[1] and is_by(tracer, rows, classes.key[0], classes.first)
    fits = fits and rows.whole.dim() == classes.whole.dim() + 1 == rows.key[0].dim() + 1
    if not fits or classes.whole.dtype != torch.int64 or given.get("reduction", "mean") == "none" or type(ignored) is not int:
        escape(tracer, some[0])
    labels = chosen(tracer, classes, classes.whole, ignored)
    given["input"] = tracer.operation("call_method", "flatten", (rows.whole, 0, -2))
    given["target"] = tracer.operation("call_method", "flatten", (labels,))
    return tracer.operation("call_function", F.cross_entropy, (), given)


def called(tracer: Tracer, function: Any, args: Args, kwargs: Keywords) -> Any:
    """A call with selections among its arguments, or of a method of one."""
    args, kwargs = tuple(map(tracer.resolve, args)), {key: tracer.resolve(item) for key, item in kwargs.items()}
    selection = selections_among(function, *args, *kwargs.values())[0]
    if any(type(item) is SelectionMethod for item in (*args, *kwargs.values())):
        escape(tracer, selection)
    op = "call_function"
    if type(function) is SelectionMethod:
        guard_tensor_method(tracer, function.name)
        op, args, target, name = "call_method", (function.owner, *args), function.name, function.name
    elif type(function).__module__ in MODULES and is_called_plainly(tracer, type(function)):
        forward, given = called_by_module(tracer, function, args)
        if type(forward) is not types.MethodType or forward.__module__ not in MODULES:  # it has hooks, or was replaced
            escape(tracer, selection)
        return tracer.inline(forward.__func__, (forward.__self__, *given), kwargs)
    elif not callable(function) or classify(function) != "operation":
        escape(tracer, selection)
    else:
        target, name = function, function.__name__
    if target in LOSSES:
        return loss_of(tracer, target, args, kwargs)
    if target is F.cross_entropy:
        return cross_entropy(tracer, args, kwargs)
    if name in REDUCTIONS and len(args) == 1 and not kwargs:
        return reduced(tracer, name, args[0])
    if name in CONVERSIONS or is_pointwise_name(name):
        return combined(tracer, op, target, args, kwargs)
    escape(tracer, selection)


def is_pointwise_name(name: str) -> bool:
    """Whether an operator computes each element from those at its place."""
    packet = getattr(torch.ops.aten, name, None)
    pure = not name.endswith("_") and name not in AUGMENTED
    return pure and packet is not None and is_pointwise(packet) and name != "mvlgamma"  # which refuses values


def watch(tracer: Tracer, frame: Frame, at: Instruction, values: list[Any]) -> None:
    """Let an instruction have values of the stack only if it moves them, or there are no selections among them."""
    if at.name not in MOVES or at.name == "STORE_FAST" and not LISTS_VARIABLES.isdisjoint(frame.code.co_names):
        for one in selections_among(*values):
            escape(tracer, one)
