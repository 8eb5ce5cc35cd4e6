"""Attention written by hand, found in the captured graph and replaced by one operator.

softmax(scale * q kᵀ, masked) v, in the usual ways of writing it: `matmul`, `@`, `bmm` or `einsum`; the scale multiplied or
divided in; `where`, `masked_fill` and added masks, also in place; an fp32 softmax around half inputs; dropout of the
weights; key heads repeated for groups of query heads, which are then read as they are. It is replaced only when nothing
else reads a value in between and every step is understood; a refusal says what stood in the way. Sizes may be symbolic:
those that the written products require to be equal are guarded to be, and a head dim is fixed. A mask made of positions
is read by `position_masks.py`, so that causal attention is seen as causal. This module must not trace: it looks at the
torch-level graph and at the fake values that capture left there.
"""

import dataclasses
import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx import GraphModule, Node

import minicompile.gpu as gpu
from minicompile.config import Config
from minicompile.graph import torch_interface
from minicompile.graph.attention import FLOATS, LARGEST_HEAD, broadcasts_to, written_attention
from minicompile.graph.operators import operand
from minicompile.graph.position_masks import FILLS, Band, PositionReader
from minicompile.graph.torch_interface import surely_equal
from minicompile.ir.graph import CapturedGraph, PatternRecord
from minicompile.ir.operator_names import AUGMENTED

PRODUCTS = ("matmul", "bmm", "einsum", "imatmul", "baddbmm")
CASTS = ("to", "type_as", "float", "half", "bfloat16", "type", "contiguous")
HARMLESS = ("clone", "detach", "view", "reshape", "transpose", "permute", "squeeze", "unsqueeze", "flatten", "unflatten",
            "expand", "sum", "mean", "amax", "add", "sub", "mul")  # fmt: skip
NAMED_OPERANDS = {"input", "other", "condition", "mat2", "batch1", "batch2"}
MODES = ("_set_grad_enabled", "_enter_autocast", "_exit_autocast", "set_grad_enabled")
LONG_WALK = 1024
WALKER_ROWS = 64
SAFE_FILL = -1e8
SAFE_SCALED_FILL = -1e6


class Refused(Exception):
    """The candidate is no attention, or not one that may be replaced; the text is for the user."""


@dataclasses.dataclass
class Found:
    """A candidate on its way to being understood."""

    softmax: Node
    reader: PositionReader
    inner: list[Node] = dataclasses.field(default_factory=list)
    keep: list[tuple[Node, bool, Any]] = dataclasses.field(default_factory=list)
    bias: Node | None = None
    scale: float = 1.0
    dropout: float = 0.0
    fixed: list[Any] = dataclasses.field(default_factory=list)
    causal: bool = False
    uniform: bool = False


def recognise_attention(captured: CapturedGraph, config: Config) -> tuple[CapturedGraph, tuple[PatternRecord, ...]]:
    """The graph with hand-written attention replaced, and a record for every softmax between two products."""
    if config.attention == "aten":
        return captured, ()
    return recognise(captured, config, "softmax", "attention", replace_one, read_what_was_written)


def recognise(
    captured: CapturedGraph, config: Config, name: str, pattern: str,
    replace: Callable[[GraphModule, Node, Config], None], prepare: Callable[[torch.fx.Graph], None] | None = None,
) -> tuple[CapturedGraph, tuple[PatternRecord, ...]]:  # fmt: skip
    """The graph with `replace` tried on every call of `name` in a copy that was prepared, and a record for each.

    `replace` raises `Refused`, or puts something in the node's place and marks what is needed no more as `replaced`.
    """
    graph = captured.module.graph
    if not any(name_of(node) == name for node in graph.nodes) or changes_unknown_to_autograd(graph):
        return captured, ()
    copy = torch.fx.Graph()
    closing = copy.graph_copy(graph, {})
    copy.output(closing).meta.update(graph.output_node().meta)
    if prepare is not None:
        prepare(copy)
    drop_unread(copy)
    module: GraphModule = torch_interface.GraphModule(captured.module, copy)
    records = []
    for node in [node for node in copy.nodes if name_of(node) == name]:
        try:
            replace(module, node, config)
            records.append(PatternRecord(pattern, True, "", node.meta.get("location")))
        except Refused as refusal:
            if str(refusal):
                records.append(PatternRecord(pattern, False, str(refusal), node.meta.get("location")))
    if not any(record.accepted for record in records):
        return captured, tuple(records)
    copy.eliminate_dead_code(
        is_impure_node=lambda node: node.op in ("placeholder", "output") or not node.meta.get("replaced")
    )
    return dataclasses.replace(captured, module=module), tuple(records)


def changes_unknown_to_autograd(graph: torch.fx.Graph) -> bool:
    """Whether what was computed with gradients is changed through its `.data`: each operator's backward then reads what eager's
    would read, which one in place of several does not."""
    seen = set[int]()
    for node in graph.nodes:
        first = node.args[0] if node.args else None
        value = first.meta.get("example_value") if isinstance(first, Node) else None
        if not isinstance(value, torch.Tensor):
            continue
        memory = torch_interface.storage_key(value)
        if node.target is getattr and node.args[1] == "data" and value.requires_grad and not value.is_leaf:
            seen.add(memory)
        elif memory in seen and changes_something(node):
            return True
    return False


def read_what_was_written(graph: torch.fx.Graph) -> None:
    """After `scores += bias` and its kin, let reads of `scores` be reads of the operation's result: it is the same tensor."""
    for node in graph.nodes:
        name = target_name(node)
        written = node.args[0] if node.args else None
        returns_it = name in AUGMENTED or name.endswith("_") and hasattr(torch.Tensor, name) and name != "__setitem__"
        if not changes_something(node) or not returns_it or not isinstance(written, Node):
            continue
        if not isinstance(written.meta.get("example_value"), torch.Tensor):
            continue
        later = node.next
        while later.op != "root":
            later.replace_input_with(written, node)
            later = later.next


def drop_unread(graph: torch.fx.Graph) -> None:
    """Remove what nobody reads and what cannot fail once captured: casts to the dtype that a value has already and dropout that
    drops nothing, whose results are the value itself, and copies, views and sums that a program makes beside its attention."""
    for node in reversed(list(graph.nodes)):
        if not node.users and not changes_something(node) and never_fails(node):
            graph.erase_node(node)


def never_fails(node: Node) -> bool:
    """Whether an operation has no effect but its result: it raises nothing that depends on values, and draws nothing."""
    name = name_of(node)
    if name == "getitem":
        return not any(isinstance(value, Node) for value in node.all_input_nodes[1:])
    idle = name == "dropout" and 0.0 in (argument(node, 1, "p", 0.5), argument(node, 2, "training", True))
    return idle or name in CASTS or name in HARMLESS


def name_of(node: Any) -> str:
    """`add` for `operator.add`, `torch.add`, `x.add`, `x += y` and `x.add_`; nothing where operands are given by name."""
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method") or NAMED_OPERANDS & node.kwargs.keys():
        return ""
    name = target_name(node)
    if name.strip("_") in AUGMENTED:
        return name.strip("_")[1:]
    return name.removesuffix("_") if not name.startswith("_") else name


def target_name(node: Node) -> str:
    """The name of the function or method that a node calls, as it is written."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def value_of(node: Any) -> torch.Tensor:
    """The fake value of a node."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor):
        raise Refused("")
    return value


def replace_one(module: GraphModule, softmax: Node, config: Config) -> None:
    """Replace the attention around one softmax, or raise `Refused`."""
    found = Found(softmax, PositionReader(module, name_of, changes_something))
    product = follow_weights(found)
    scores = follow_scores(found)
    if len({id(node) for node in found.inner}) != len(found.inner):
        raise Refused("")
    for node in found.inner:
        if len([user for user in node.users if name_of(user) not in FILLS]) != 1:
            raise Refused(f"the value of {name_of(node)} between the two products is used elsewhere")
    graph = module.graph
    with graph.inserting_before(product):
        query, key = score_operands(graph, scores)
        value, arrange = value_operand(graph, product)
        key, value = without_repeats(query, key, value, product, found)
        query, key, value = (as_multiplied(graph, node, scores, product) for node in (query, key, value))
        check_operands(query, key, value, found, config)
        if any(not number.node.expr.is_number for number in found.fixed):
            raise Refused("the scores are scaled by something that is no constant")
        sizes = value_of(query).shape[-2], value_of(key).shape[-2]
        keep = masks_to_keep(graph, found.reader, sizes, found)
        take_constant_bias(found.reader, sizes, found)
        check_order(scores, product, found.inner)
        arguments = (query, key, value, tuple(keep), found.bias, found.scale, found.causal, found.dropout,
                     found.uniform)
        result = graph.call_function(written_attention, arguments)
        result.meta.update(product.meta)
        if arrange is not None:
            result = graph.call_method("permute", (result, *arrange))
            result.meta.update(product.meta)
    product.replace_all_uses_with(result)
    for node in (product, *found.inner):
        node.meta["replaced"] = True


def follow_weights(found: Found) -> Node:
    """From the softmax down to the product with the values."""
    softmax = found.softmax
    dim = argument(softmax, 1, "dim", None)
    rank = value_of(softmax).dim()
    if not isinstance(dim, int) or dim not in (-1, rank - 1):
        raise Refused("")
    current = softmax
    while True:
        found.inner.append(current)
        readers = list(current.users)
        if not any(name_of(reader) in (*PRODUCTS, *CASTS, "dropout") for reader in readers):  # no attention at all
            raise Refused("")
        if len(readers) != 1:
            raise Refused("the attention weights are used elsewhere")
        reader = readers[0]
        if name_of(reader) in PRODUCTS and product_operand(reader, 0) is current:
            return reader
        if name_of(reader) in CASTS:
            if not value_of(reader).is_floating_point():
                raise Refused("the attention weights become whole numbers")
            current = reader
        elif name_of(reader) == "dropout":
            p, training = argument(reader, 1, "p", 0.5), argument(reader, 2, "training", True)
            if not isinstance(p, float) or not isinstance(training, bool) or not 0.0 <= p < 1.0 or found.dropout:
                raise Refused("dropout twice, or of a probability that is no constant below 1")
            found.dropout = p if training else 0.0
            current = reader
        else:
            raise Refused("")


def follow_scores(found: Found) -> Node:
    """From the softmax up to the product of queries and keys, taking in masks and scales."""
    current = found.softmax.args[0]
    while True:
        if not isinstance(current, Node):
            raise Refused("")
        name = name_of(current)
        if name in PRODUCTS:
            found.inner.append(current)
            if name == "baddbmm":
                require_unscaled(found, allow_positive=False)
                if argument(current, 3, "beta", 1) != 0:
                    raise Refused("a tensor is added inside the product")
                found.scale = float(argument(current, 4, "alpha", 1))
            return current
        if name in ("mul", "truediv", "div", "true_divide", "multiply", "divide"):
            following = take_scale(found, current, name)
        elif name in ("where", "masked_fill"):
            following = take_mask(found, current, name)
        elif name == "add":
            following = take_bias(found, current)
        elif name in CASTS:
            before, after = value_of(current.args[0]).dtype, value_of(current).dtype
            if before != after and torch.promote_types(before, after) != after:
                raise Refused("the scores are rounded to a narrower dtype")
            following = current.args[0]
        else:
            raise Refused(f"the scores pass through {name or current.op}")
        found.inner.append(current)
        current = following


def take_scale(found: Found, node: Node, name: str) -> Any:
    """A factor on the scores."""
    first, second = node.args[0], node.args[1] if len(node.args) > 1 else None
    if name in ("mul", "multiply") and (not isinstance(first, Node) or value_of(first).dim() == 0):
        first, second = second, first
    number = constant_number(found, second)
    if number is None or node.kwargs.get("rounding_mode") is not None:
        raise Refused("the scores are scaled by something that is no constant")
    if number == 0 or not math.isfinite(number):
        raise Refused("the scores are scaled by zero or infinity")
    found.scale = found.scale * number if name in ("mul", "multiply") else found.scale / number
    return first


def take_mask(found: Found, node: Node, name: str) -> Any:
    """A boolean mask: -inf, or a large negative number, where it hides."""
    require_unscaled(found, allow_positive=True)
    if name == "where":
        condition, then, other = (*node.args, None, None)[:3]
        keeps = constant_number(found, other) is not None
        scores, filler = (then, other) if keeps else (other, then)
    else:
        scores, condition, filler, keeps = node.args[0], argument(node, 1, "mask", None), argument(node, 2, "value", None), False
    fill = constant_number(found, filler)
    if fill is None or not isinstance(condition, Node) or value_of(condition).dtype != torch.bool:
        raise Refused("a mask that is no boolean tensor with a constant fill")
    if not (fill <= SAFE_FILL and fill * found.scale <= SAFE_SCALED_FILL):
        raise Refused(f"masked scores are set to {fill}, which does not hide them for certain")
    found.keep.append((condition, keeps, fill))
    return scores


def take_bias(found: Found, node: Node) -> Any:
    """A tensor added to the scores: an additive mask or a position bias."""
    require_unscaled(found, allow_positive=False)
    if found.bias is not None or len(node.args) < 2 or node.kwargs:
        raise Refused("more than one tensor is added to the scores")
    whole = value_of(node).shape
    for scores, bias in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
        if not isinstance(scores, Node) or not isinstance(bias, Node) or value_of(scores).dim() != len(whole):
            continue
        if all(map(surely_equal, value_of(scores).shape, whole)) and leads_to_scores(scores):
            if not value_of(bias).is_floating_point() or value_of(bias).dim() < 2:
                raise Refused("what is added to the scores is no floating mask")
            found.bias = bias
            return scores
    raise Refused("the scores are a sum that is no score plus mask")


def leads_to_scores(node: Node) -> bool:
    """Whether a summand is the product of queries and keys rather than the mask."""
    steps = 0
    while isinstance(node, Node) and steps < 8:
        if name_of(node) in PRODUCTS:
            return True
        if name_of(node) not in ("mul", "truediv", "div", "where", "masked_fill", "add", *CASTS):
            return False
        node = node.args[1] if name_of(node) == "where" and isinstance(node.args[1], Node) else node.args[0]  # type: ignore
        steps += 1
    return False


def require_unscaled(found: Found, allow_positive: bool) -> None:
    """Masks that lie inside of a scale would be scaled too."""
    if found.scale != 1.0 and not (allow_positive and found.scale > 0):
        raise Refused("the mask is applied before the scale")


def without_repeats(query: Node, key: Node, value: Node, product: Node, found: Found) -> tuple[Node, Node]:
    """Key and value heads before each was repeated for the query heads of its group, if both were."""
    short = [before_repeat(key), before_repeat(value)]
    if None in short or value_of(query).dim() != 4:
        return key, value
    (key_node, key_made), (value_node, value_made) = short  # type: ignore[misc]  # no None, as tested above
    heads = [value_of(node).shape[1] for node in (query, key_node, value_node)]
    if not all(type(count) is int for count in heads) or heads[1] != heads[2] or heads[0] % heads[1]:
        return key, value
    for made in (key_made, value_made):
        check_order(made, product, found.inner)
    return key_node, value_node


def before_repeat(node: Node) -> tuple[Node, Node] | None:
    """Heads (dim 1 of 4) before each was repeated, and the first node that repeats them."""
    if name_of(node) == "repeat_interleave" and argument(node, 2, "dim", None) == 1 and not isinstance(node.args[1], Node):
        return operand(node), node
    if name_of(node) not in ("reshape", "view", "flatten") or name_of(node.args[0]) != "expand":
        return None
    expanded = operand(node)
    inserted = operand(expanded)
    if name_of(inserted) not in ("getitem", "unsqueeze"):
        return None
    source = operand(inserted)
    four, five, wide = value_of(source).shape, value_of(inserted).shape, value_of(expanded).shape
    if len(wide) != 5 or len(four) != 4:
        return None
    whole = (*value_of(node).shape, *five, wide[1])
    wanted = (four[0], wide[1] * wide[2], *four[2:], *four[:2], 1, *four[2:], four[1])
    same = len(whole) == len(wanted) and all(map(surely_equal, whole, wanted))
    return (source, inserted) if same else None


def score_operands(graph: torch.fx.Graph, product: Node) -> tuple[Node, Node]:
    """Queries (…, i, d) and keys (…, j, d) of the first product."""
    if name_of(product) == "einsum":
        left, right, out = einsum_letters(product)
        shared = [letter for letter in left if letter in right and letter not in out]
        i, j = out[-2], out[-1]
        if len(shared) != 1 or i not in left or i in right or j not in right or j in left:
            raise Refused("an einsum that is no product of queries and keys")
        batch = out[:-2]
        return (permuted(graph, product.args[1], left, f"{batch}{i}{shared[0]}"),
                permuted(graph, product.args[2], right, f"{batch}{j}{shared[0]}"))  # fmt: skip
    query, turned = product_operand(product, 0), product_operand(product, 1)
    rank = value_of(turned).dim()
    if min(value_of(query).dim(), rank) < 2:
        raise Refused("a product with a vector")
    swapped = name_of(turned) == "transpose" and {dim % rank for dim in turned.args[1:]} == {rank - 2, rank - 1}
    if swapped and not changes_something(turned) or name_of(turned) == "getattr" and turned.args[1] == "mT":
        return query, turned.args[0]
    return query, by_method(graph, turned, "transpose", -2, -1)


def value_operand(graph: torch.fx.Graph, product: Node) -> tuple[Node, tuple[int, ...] | None]:
    """Values (…, j, d) of the second product, and how its result must be permuted."""
    if name_of(product) != "einsum":
        return product_operand(product, 1), None
    left, right, out = einsum_letters(product)
    batch, i, j = left[:-2], left[-2], left[-1]
    free = [letter for letter in right if letter not in left]
    if j not in right or i in right or len(free) != 1 or sorted(out) != sorted(f"{batch}{i}{free[0]}"):
        raise Refused("an einsum that is no product of weights and values")
    made = f"{batch}{i}{free[0]}"
    arrange = None if made == out else tuple(made.index(letter) for letter in out)
    return permuted(graph, product.args[2], right, f"{batch}{j}{free[0]}"), arrange


def einsum_letters(product: Node) -> tuple[str, str, str]:
    """The letters of both operands and of the result of a plain two-operand einsum; raises `Refused` for another one."""
    equation, other = product.args[0], Refused("an einsum of another form")
    if not isinstance(equation, str) or len(product.args) != 3 or "->" not in equation:
        raise other
    if "..." in equation:
        spare = "".join(letter for letter in "ZYXWVU" if letter not in equation)
        ranks = {value_of(arg).dim() - len(part.strip().replace("...", "")) for arg, part in zip(
            product.args[1:], equation.split("->")[0].split(","), strict=True)}  # fmt: skip
        if len(ranks) != 1 or equation.count("...") != 3:
            raise other
        equation = equation.replace("...", spare[: ranks.pop()])
    sides, out = equation.replace(" ", "").split("->")
    operands = sides.split(",")
    if len(operands) != 2 or any(len(set(part)) != len(part) for part in (*operands, out)) or len(out) < 3:
        raise other
    return operands[0], operands[1], out


def permuted(graph: torch.fx.Graph, node: Any, letters: str, wanted: str) -> Node:
    """`node`, whose dims are `letters`, with dims in the order `wanted`."""
    if sorted(letters) != sorted(wanted):
        raise Refused("an einsum over dims of another kind")
    if letters == wanted:
        return node
    return by_method(graph, node, "permute", *(letters.index(letter) for letter in wanted))


def by_method(graph: torch.fx.Graph, node: Node, name: str, *arguments: Any) -> Node:
    """A new node: what a method makes of a node."""
    made = graph.call_method(name, (node, *arguments))
    made.meta["example_value"] = getattr(value_of(node), name)(*arguments)
    return made


def as_multiplied(graph: torch.fx.Graph, node: Node, *products: Node) -> Node:
    """An operand in the dtype to which autocast casts it for both products."""
    before, (dtype, *others) = value_of(node).dtype, [value_of(product).dtype for product in products]
    if before == dtype or others != [dtype] or before == torch.float64 or not dtype.is_floating_point:
        return node
    return by_method(graph, node, "to", dtype)


def check_operands(query: Node, key: Node, value: Node, found: Found, config: Config) -> None:
    """Shapes and dtypes that the operator computes exactly as the written code does, or better."""
    q, k, v = value_of(query), value_of(key), value_of(value)
    if q.dim() < 2 or k.dim() != q.dim() or v.dim() != q.dim():
        raise Refused("queries, keys and values of different ranks")
    grouped = q.dim() == 4 and type(q.shape[1]) is type(k.shape[1]) is int and k.shape[1] < q.shape[1]
    same_batch = q.shape[:1] == k.shape[:1] if grouped else q.shape[:-2] == k.shape[:-2]
    if not same_batch or k.shape[:-1] != v.shape[:-1]:
        raise Refused("batch dims that broadcast")
    if max(int(q.shape[-1]), int(v.shape[-1])) > LARGEST_HEAD or any(0 in part.shape for part in (q, k, v)):
        raise Refused(f"a head dim above {LARGEST_HEAD}")
    if q.dtype not in FLOATS or not q.dtype == k.dtype == v.dtype:
        raise Refused("queries, keys and values of different dtypes")
    product_dtype = value_of(found.inner[-1]).dtype
    if product_dtype != q.dtype:
        raise Refused("a product in another dtype than its arguments")
    if config.emulate_precision_casts and q.dtype in (torch.float16, torch.bfloat16):
        raise Refused("eager's rounding of half-precision scores was asked for")
    if config.fallback_random and found.dropout > 0.0:
        raise Refused("eager's random numbers were asked for")
    target = (*q.shape[:-1], k.shape[-2])
    for node in (found.bias, *(condition for condition, _, _ in found.keep)):
        if node is not None and not broadcasts_to(value_of(node).shape, target):
            raise Refused("a mask of another shape than the scores")
    if leaves_chip_idle(q, k):
        raise Refused("so few programs would each walk along so many keys, or queries, that the library's products are faster")


def leaves_chip_idle(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether fp32 attention, whose programs walk along the other side, would keep at most half of the chip busy for long: where
    queries are few, or keys in a backward. A single query is split over its keys."""
    sizes = (*query.shape[:-1], key.shape[-2])
    if query.dtype != torch.float32 or any(isinstance(size, torch.SymInt) for size in sizes) or query.shape[-2] == 1:
        return False
    *batch, queries, keys = sizes
    few, many = (queries, keys) if queries < keys or not query.requires_grad else (keys, queries)
    return many >= LONG_WALK and 2 * math.prod(batch) * -(-few // WALKER_ROWS) <= gpu.processors(query)


def masks_to_keep(graph: torch.fx.Graph, reader: PositionReader, sizes: tuple[Any, Any], found: Found) -> list[Node]:
    """Boolean masks, True where a key is seen; a causal one becomes a flag, one that hides nothing is dropped."""
    open_masks = [mask for mask in found.keep if (band := reader.band(mask[0])) is None or not holds(band, mask[1])]
    causal = [is_causal(reader, condition, sizes, keeps, not keeps) for condition, keeps, _ in open_masks]
    fills = {fill for _, _, fill in open_masks}
    found.uniform = not all(causal) and fills != {-math.inf}
    if len(fills) > 1 and found.uniform or fills - {-math.inf} and found.bias is not None:
        raise Refused("scores are hidden in several ways: a query that sees no key would come out differently")
    kept = []
    for (condition, keeps, _), as_flag in zip(open_masks, causal, strict=True):
        if as_flag and not found.uniform:
            found.causal = True
            continue
        kept.append(condition if keeps else graph.call_function(torch.logical_not, (condition,)))
    return kept


def take_constant_bias(reader: PositionReader, sizes: tuple[Any, Any], found: Found) -> None:
    """An added constant of zeros, with -inf or what hides as surely in the place of later keys, is causal."""
    band = reader.band(found.bias)
    if band is None:
        return
    if holds(band, 0):
        found.bias = None
    elif is_causal(reader, found.bias, sizes, 0, band.outside) and float(band.outside) <= SAFE_FILL:
        if not found.keep or band.outside == -math.inf:
            found.causal, found.bias = True, None


def holds(band: Band, value: Any) -> bool:
    """Whether a mask is one value everywhere."""
    return band.edge is None and bool(band.inside == value)


def is_causal(reader: PositionReader, mask: Any, sizes: tuple[Any, Any], seen: Any, hidden: Any) -> bool:
    """Whether a mask says `seen` for each query's keys up to its own position, top left aligned, and `hidden` for others."""
    band = reader.band(mask)
    if band is None or band.edge is None or not all(map(surely_equal, value_of(mask).shape[-2:], sizes)):
        return False
    return surely_equal(band.edge, 0) and bool(band.inside == seen) and bool(band.outside == hidden)


def check_order(first: Node, last: Node, inner: Collection[Node] = ()) -> None:
    """Nothing between two nodes changes a mode or writes in place, other than `inner` ones."""
    node = first.next
    while node is not last:
        if node not in inner and changes_something(node):
            raise Refused(f"{name_of(node) or node.target} runs between {name_of(first)} and {name_of(last)}")
        node = node.next


def changes_something(node: Node) -> bool:
    """Whether a node writes to a tensor or switches a mode."""
    target = target_name(node)
    if node.op not in ("call_function", "call_method"):
        return False
    in_place = target.endswith("_") and not target.endswith("__") and target not in ("and_", "or_", "not_")
    return in_place or target.strip("_") in ("setitem", *AUGMENTED) or target in MODES or "out" in node.kwargs


def argument(node: Node, position: int, name: str, default: Any) -> Any:
    """An argument given by position or by name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def product_operand(node: Node, index: int) -> Any:
    """The first or second factor of a product."""
    return node.args[index + (name_of(node) in ("einsum", "baddbmm"))]


def constant_number(found: Found, value: Any) -> float | None:
    """A Python number, a one-element constant of the graph, or a symbolic number that must turn out to be fixed."""
    example = value.meta.get("example_value") if isinstance(value, Node) else None
    if isinstance(example, (torch.SymInt, torch.SymFloat)):
        found.fixed.append(example)
        return float(example.node.hint)
    if isinstance(example, torch.Tensor) and example.dim() == 0:
        held = found.reader.band(value)
        return None if held is None or held.inside.dtype == torch.bool or held.inside.is_complex() else float(held.inside)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None
