"""What to keep from the forward for the backward: a minimum cut in bytes.

Every forward value is two vertices joined by an edge that costs what keeping it costs; whatever the backward reads hangs
on the sink; inputs and what must not run twice hang on the source. The cut is what is kept. This module must not build
graphs.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from minicompile.graph.minimum_cut import Edge, connected_pieces
from minicompile.graph.minimum_cut import minimum_cut as cut_network
from minicompile.graph.operators import (
    is_fusible,
    is_impure,
    is_item,
    is_reduction,
    is_size,
    is_view,
    name_of,
    num_bytes,
    operand,
    storage_root,
)
from minicompile.ir.graph import ancestors

LONGEST_CHAIN = 24
EXACT = ("abs", "neg", "clone")
ROUNDED_ALIKE = frozenset("abs neg clone add sub mul masked_fill where maximum minimum _to_copy".split())
HALVES = (torch.float16, torch.bfloat16)
LAST_RESORT = 1000
"""How many times its bytes a value costs that is kept only where the backward cannot do without."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """The choice: forward nodes to keep, in graph order, and why each could not be recomputed for less.

    `copied`: those of which a copy is kept, inputs that the graph writes, or the user may.
    """

    kept: tuple[Node, ...]
    reasons: dict[Node, str]
    forward: frozenset[Node]
    copied: frozenset[Node]


class JointView:
    """Which nodes of a joint graph belong where.

    Attributes:
        nodes: in order, without the output node.
        backward: nodes that depend on a tangent.
        searched: forward values in which the backward looks for what is equal to their extreme: it needs the very same ones.
        measured: forward values that had better not be rounded by being kept, or else `measuring` does not run again.
        wanted: forward values that the backward reads.
        kept_by_eager: what eager's backward reads, without the views in between.
        mutated: inputs that the graph writes.
    """

    def __init__(
        self, graph: Graph, tangents: Iterable[Node], gradients: Iterable[Node], mutated: frozenset[Node] = frozenset()
    ) -> None:
        self.mutated = mutated
        self.nodes = [node for node in graph.nodes if node.op != "output"]
        self.position = {node: index for index, node in enumerate(self.nodes)}
        self.backward: set[Node] = set(tangents)
        for node in self.nodes:
            if any(argument in self.backward for argument in node.all_input_nodes):
                self.backward.add(node)
        self.wanted: set[Node] = {node for node in gradients if node not in self.backward}
        for node in self.backward:
            self.wanted.update(a for a in node.all_input_nodes if a not in self.backward)
        self.searched = {source for node in self.nodes for source in searched_for_extremes(node)} - rounded_alike(self.nodes)
        self.wanted |= self.searched
        self.measured, self.measuring = measured_from_the_largest([node for node in self.nodes if node not in self.backward])
        self.relevant = ancestors(self.wanted)
        self.order = [node for node in self.nodes if node in self.relevant]
        self.level = self._levels()
        in_eager = [n for n in self.order if n.meta.get("stage") == "backward" or n.meta.get("also_backward")]
        read = (argument for node in in_eager for argument in node.all_input_nodes)
        self.kept_by_eager = {storage_root(node) for node in (*self.wanted, *read)}

    def _levels(self) -> dict[Node, int]:
        """How many unfusible operators lie before each node: nodes of different levels are in different kernels."""
        level: dict[Node, int] = {}
        for node in self.nodes:
            barrier = 0 if is_fusible(node) or is_reduction(node) or is_item(node) or node.op == "placeholder" else 1
            level[node] = barrier + max((level[a] for a in node.all_input_nodes), default=0)
        return level

    def is_materialised(self, node: Node) -> bool:
        """Whether the forward writes the value to memory whatever the cut says."""
        if node.op == "placeholder" or not is_fusible(node):
            return True
        for user in node.users:
            if user.op == "output":
                return True
            if user in self.backward:
                continue
            only_picks = is_view(user) or is_item(user)
            if self.is_materialised(user) if only_picks else self.level[user] > self.level[node]:
                return True
        return False

    def is_kept_as_a_copy(self, node: Node) -> bool:
        """Whether an input, or a view of one, is written by the graph or may be by the user, as far as eager cares."""
        root = storage_root(node)
        may_change = root.meta.get("kind") in ("tensor", "buffer") and root not in self.kept_by_eager
        return (may_change or root in self.mutated) and not is_size(node)

    def is_read_by_unfusible_backward(self, node: Node) -> Node | None:
        """The product or other extern operator of the backward that reads the value, straight or through views."""
        for user in node.users:
            if user.op == "output":
                continue
            if is_view(user):
                found = self.is_read_by_unfusible_backward(user)
                if found is not None:
                    return found
            elif user in self.backward and not is_fusible(user) and not is_reduction(user):
                return user
        return None


def choose(view: JointView, budget: float) -> Cut:
    """The cheapest set of values to keep, at most `budget` of what plain speed would keep where that is asked for."""
    banned = ban(view)
    kept = minimum_cut(view, banned)
    fixed = view.searched
    if not kept.isdisjoint(view.measured):
        fixed = fixed | view.measuring
        banned = dict.fromkeys(view.measuring & view.relevant, "it measures what is rounded where it is kept") | banned
        kept = minimum_cut(view, banned)
    if budget < 1.0:
        kept, banned = shrink(view, banned, kept, budget, fixed)
    ordered = tuple(sorted(kept, key=view.position.__getitem__))
    reasons = {node: banned.get(node, "the cheapest point of its chain to keep") for node in ordered}
    copied = frozenset(filter(view.is_kept_as_a_copy, ordered))
    return Cut(ordered, reasons, frozenset(view.nodes) - view.backward, copied)


def ban(view: JointView) -> dict[Node, str]:
    """Nodes that are not to run again, with the reason."""
    banned: dict[Node, str] = {}
    chain: dict[Node, int] = {}
    reads: dict[Node, int] = {}
    for node in view.order:
        if node.op == "placeholder":
            reads[node] = num_bytes(node)
            continue
        reason = why_not_again(view, node)
        length = max((chain.get(a, 0) for a in node.all_input_nodes), default=0)
        counts = not is_view(node) and node.meta.get("checkpoint") is None
        if reason is None and counts and isinstance(node.meta.get("val"), torch.Tensor):
            length += 1
            if length > LONGEST_CHAIN:
                reason = f"recomputing it would repeat more than {LONGEST_CHAIN} operations in a row"
            elif reaches_back(view, node, banned, reads):
                reason = "recomputing it would go back over earlier products, as along a residual stream"
        if reason is None:
            chain[node] = length
            reads[node] = max((reads[a] for a in node.all_input_nodes), default=0)
        else:
            banned[node] = reason
            reads[node] = num_bytes(node)
    return banned


def reaches_back(view: JointView, node: Node, banned: dict[Node, str], reads: dict[Node, int]) -> bool:
    """Whether a recomputation needs a value from before a product that would have to be recomputed too, and from memory.

    The sum after each block of a residual network is such a value: it would be the sum of what all blocks before it gave.
    `reads`: the bytes of the largest value that recomputing a node reads; a mask of random numbers reads next to none.
    """
    for argument in node.all_input_nodes:
        while is_view(argument) or is_item(argument):
            argument = argument.all_input_nodes[0]
        is_there = argument.op == "placeholder" or argument in banned
        if not is_there and view.level[argument] < view.level[node] and 2 * reads[argument] >= num_bytes(argument):
            return True
    return False


def why_not_again(view: JointView, node: Node) -> str | None:
    """Why a node should not be recomputed, or `None`."""
    if is_impure(node):
        return "it draws random numbers or has an effect"
    if node.meta.get("kept") and not is_view(node):
        return "the policy of its checkpoint keeps it"
    if node.meta.get("checkpoint") is not None:
        return None
    if node.meta.get("stage") == "backward":
        return None  # eager computes it in the backward too
    if node.op == "get_attr" or is_size(node) or is_view(node) or is_item(node):
        return None
    if any(comes_of_a_parameter(view, node, argument) for argument in node.all_input_nodes):
        return "it reads a parameter that eager does not keep, so that it may change before the backward"
    if is_reduction(node):
        return "a reduction reads all of its argument again"
    if node in view.searched:
        return "the backward looks in it for its extreme, which another rounding would hide"
    if not is_fusible(node):
        return f"{name_of(node)} is expensive"
    reader = view.is_read_by_unfusible_backward(node)
    if reader is not None and node.all_input_nodes:  # what reads nothing, such as a range, is free
        return f"{name_of(reader)} of the backward reads it from memory"
    return None


def searched_for_extremes(node: Node) -> Iterator[Node]:
    """The values of the forward that a comparison of a gradient searches for what a reduction (or median) found in them.

    Computed again they may be rounded elsewhere: no element is equal then, and the gradient is divided among none.
    """
    if name_of(node) != "eq" or node.meta.get("stage") != "backward" or len(node.all_input_nodes) != 2:
        return
    for values, extreme in itertools.permutations(node.all_input_nodes):
        while is_view(values) or name_of(values) in EXACT:
            values = operand(values)
        if values.op != "placeholder" and not is_fusible(storage_root(extreme)) and values in ancestors([extreme]):
            yield values


def rounded_alike(nodes: list[Node]) -> set[Node]:
    """Values that every kernel computes to the last bit alike: from memory, by operations whose result is rounded once.

    Halves are rounded where they are kept, and not in between; so is what a kernel reduces, which no backward repeats but
    that of a checkpoint.
    """
    alike: set[Node] = set()
    for node in nodes:
        dtype = getattr(node.meta.get("val"), "dtype", torch.float16)
        if node.op == "placeholder":
            same = node.meta.get("kind") != "parameter"  # which the user may change before the backward
        elif not is_fusible(node):
            same = not is_reduction(node) or dtype not in HALVES and node.meta.get("checkpoint") is None
        else:
            whole = not (dtype.is_floating_point or dtype.is_complex)
            once = whole or dtype not in HALVES and name_of(node) in ROUNDED_ALIKE
            same = (once or is_view(node)) and alike.issuperset(node.all_input_nodes)
        if same:
            alike.add(node)
    return alike


def measured_from_the_largest(nodes: list[Node]) -> tuple[set[Node], set[Node]]:
    """Values in 16 bits whose largest is taken in fp32, with what they are computed of in the same kernel; what measures them.

    Kept, they are rounded; of rounded values a largest that was not is no bound, and the exponential of the distance anything.
    """
    found = {node for node in nodes if name_of(node) == "amax" and node.meta["val"].dtype == torch.float32}
    largest = frozenset(found)
    for node in reversed(nodes):
        if isinstance(node.meta.get("val"), torch.Tensor) and is_fusible(node) and any(user in found for user in node.users):
            found.add(node)
    values = found - largest
    seen = set(values)
    for node in nodes:
        if is_view(node) and not seen.isdisjoint(node.all_input_nodes):
            seen.add(node)
    measuring = {node for node in nodes if is_fusible(node) and not seen.isdisjoint(node.all_input_nodes)}
    return {node for node in values if node.meta["val"].dtype in HALVES}, measuring - seen


def comes_of_a_parameter(view: JointView, node: Node, argument: Node) -> bool:
    """Whether a node is made of a parameter alone that the user may write before the backward, as far as eager cares.

    After a norm's or another bias there is a whole activation to keep, which is not worth it, and to keep the small casts of
    norms would take a kernel each.
    """
    root = storage_root(argument)
    alone = name_of(node) != "_to_copy" and num_bytes(node) <= num_bytes(root)
    return root.meta.get("kind") == "parameter" and alone and root not in view.kept_by_eager


def minimum_cut(view: JointView, banned: dict[Node, str]) -> set[Node]:
    """The nodes whose keeping separates source from sink at the least cost.

    What hangs on the source needs no edges into it, so the network falls apart into small pieces (a few per layer of a
    model); each is cut on its own.
    """
    distance = recompute_distance(view)
    costs = {node: keeping_cost(view, node, distance[node]) for node in view.order}
    near_source = {node for node in view.order if node.op == "placeholder" or node in banned}
    kept = {node for node in near_source if node in view.wanted and costs[node] is not None}
    edges: list[Edge] = []
    for node in view.order:
        if node not in kept:
            index = 2 * view.position[node]
            edges.append((index, index + 1, costs[node]))
            users = (user for user in node.users if user in view.relevant and user not in near_source)
            edges += [(index + 1, 2 * view.position[user], None) for user in users]
    known: dict[Any, frozenset[int]] = {}
    for piece in connected_pieces(edges):
        kept |= cut_piece(view, piece, near_source, known)
    return kept


def cut_piece(view: JointView, piece: list[Edge], near_source: set[Node], known: dict[Any, frozenset[int]]) -> set[Node]:
    """The minimum cut of one connected piece of the network; `known` are those of pieces like it, in other layers."""
    indices = sorted({index for start, end, _ in piece for index in (start, end)})
    members = [view.nodes[index // 2] for index in indices if index % 2 == 0]
    sources = [2 * view.position[node] for node in members if node in near_source]
    sinks = [2 * view.position[node] + 1 for node in members if node in view.wanted]
    if not sources or not sinks:
        return set()
    place = {index: number for number, index in enumerate(indices)}
    renamed = tuple((place[start], place[end], cost) for start, end, cost in piece)
    key = renamed, tuple(map(place.__getitem__, sources)), tuple(map(place.__getitem__, sinks))
    chosen = known.get(key)
    if chosen is None:
        chosen = known[key] = cut_network(*key)
    return {node for node in members if place[2 * view.position[node]] in chosen}


def recompute_distance(view: JointView) -> dict[Node, int]:
    """Operations between a value and its first use in the backward."""
    distance: dict[Node, int] = {}
    for node in reversed(view.order):
        if node in view.wanted:
            distance[node] = 0
            continue
        step = 0 if is_view(node) or is_item(node) else 1
        distance[node] = step + min((distance[u] for u in node.users if u in view.relevant), default=0)
    return distance


def keeping_cost(view: JointView, node: Node, distance: int) -> int | None:
    """What keeping a value costs, in bytes times 64; `None` if it cannot be kept.

    A value that the forward would not otherwise write costs the write too; among equals the one nearest to its use wins.
    """
    value = node.meta.get("val")
    if is_size(node):  # a float computed from sizes is computed again: programs return whole numbers only
        return 1 if node.op == "placeholder" or not isinstance(value, torch.SymFloat) else None
    if not isinstance(value, torch.Tensor) or node.op == "get_attr":
        return None
    size = num_bytes(node)
    if view.is_kept_as_a_copy(node):
        dense = torch.ops.aten.is_non_overlapping_and_dense(value)
        return max(size, 1) * (128 + min(distance, 32)) if dense or node in view.mutated else None
    if node.op == "placeholder":
        return 1 + size // 16 if node.meta.get("kind") in ("parameter", "buffer") else 1 + size * 32
    if keep_out_of_checkpoint(view, node):
        return None
    if is_view(node) and num_bytes(node.args[0]) <= size:  # type: ignore[arg-type]
        return None
    weight = (64 if view.is_materialised(node) else 128) * (LAST_RESORT if node in view.measured else 1)
    return max(size, 1) * (weight + min(distance, 32))


def keep_out_of_checkpoint(view: JointView, node: Node) -> bool:
    """Whether the user asked for the value to be recomputed: it lives inside one checkpointed region."""
    region = node.meta.get("checkpoint")
    source: Any = node.args[0] if is_item(node) else node
    if region is None or node.meta.get("stage") != "forward" or is_impure(source) or source.meta.get("kept"):
        return False
    users = [user for user in node.users if user not in view.backward]
    return all(user.meta.get("checkpoint") == region for user in users) and bool(users)


def shrink(
    view: JointView, banned: dict[Node, str], kept: set[Node], budget: float, fixed: set[Node]
) -> tuple[set[Node], dict[Node, str]]:
    """Allow more and more to run again, the most bytes for the least work first, until the kept bytes fit.

    `fixed`: what would come out as something else.
    """
    allowed = budget * kept_bytes(view, kept)
    candidates = sorted(
        (n for n in banned if not is_impure(n) and n not in fixed),
        key=lambda n: (work(n) / max(num_bytes(n), 1), view.position[n]),
    )

    def freeing(count: int) -> tuple[set[Node], dict[Node, str]]:
        left = {node: banned[node] for node in banned.keys() - candidates[:count]}
        return minimum_cut(view, left), left

    counts = range(len(candidates))
    return freeing(bisect.bisect_left(counts, True, key=lambda count: kept_bytes(view, freeing(count)[0]) <= allowed))


def kept_bytes(view: JointView, kept: Iterable[Node]) -> int:
    """Bytes that live from forward to backward, inputs (alive anyway) apart."""
    return sum(num_bytes(node) for node in kept if node.op != "placeholder" or view.is_kept_as_a_copy(node))


def work(node: Node) -> float:
    """A rough count of operations, to compare candidates for recomputation."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (tuple, list)) and value else value
    elements = first.numel() if isinstance(first, torch.Tensor) else 1
    elements = elements if isinstance(elements, int) else 4096
    if is_fusible(node):
        return elements
    read = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], Node) else None
    inner = read.shape[-1] if isinstance(read, torch.Tensor) and read.dim() else 1
    return float(elements) * (inner if isinstance(inner, int) else 4096)
