"""Random operators as pure functions of seeds drawn once per run.

One `minicompile::seeds` node at the head of the graph draws a seed per random operator, a tensor of its own. With
`Config.fallback_random` eager's operators stay in the graph, but for those that Python cannot name and as `in_memory_order`
has them. This module must not know kernels.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from minicompile.graph.decompositions import checked_unit
from minicompile.graph.recorder import Recorder

aten = torch.ops.aten
ours = torch.ops.minicompile
RANDOM_FROM = getattr(aten.random, "from")  # a word of Python's own
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Seeds:
    """Hands out one seed per random operator of a graph, per device."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._drawn: dict[torch.device, tuple[Node, Node]] = {}  # and the last of its readers

    def draw(self, device: torch.device) -> Tensor:
        """A seed that nobody else has."""
        recorder = self._recorder
        recorder.mark_unrepeatable()
        if device not in self._drawn:
            first = next((n for n in recorder.graph.nodes if n.op != "placeholder"), None)
            with recorder.graph.inserting_before(first) if first is not None else recorder.graph.inserting_after():
                drawn = recorder.graph.call_function(ours.seeds.default, (1,), {"device": device})
            drawn.meta.update(val=[], stage="forward")
            self._drawn[device] = drawn, drawn
        drawn, last = self._drawn[device]
        seed = recorder.fake_empty((2,), torch.int64, device)
        with recorder.graph.inserting_after(last):
            node = recorder.graph.call_function(operator.getitem, (drawn, len(drawn.meta["val"])))
        drawn.meta["val"].append(seed)
        node.meta.update(val=seed, stage="forward")
        recorder.register(seed, node)
        self._drawn[device] = drawn, node
        return seed

    def close(self) -> None:
        """Write the final number of seeds into the nodes that draw them."""
        for drawn, _ in self._drawn.values():
            drawn.args = (len(drawn.meta["val"]),)


def eager_decompositions() -> dict[Any, Callable[..., Any]]:
    """Operators that draw eager's own numbers, in the order and under the names that a graph can have."""
    return {aten.bernoulli.p: in_memory_order, RANDOM_FROM: functools.partial(random_between, aten.randint_like.low_dtype)}


def random_between(draw: Callable[..., Any], like: Tensor, low: int, high: int | None = None, **options: Any) -> Any:
    """`aten.random.from` by a function that draws whole numbers like a tensor; not where eager may refuse the bounds."""
    if like.dtype in FLOATS:
        least, most = -int(2 / torch.finfo(like.dtype).eps), int(2 / torch.finfo(like.dtype).eps)
    elif like.dtype != torch.bool and type(low) is type(high) is int:
        least, most = torch.iinfo(like.dtype).min, torch.iinfo(like.dtype).max + 1
    else:
        return NotImplemented
    return draw(like, low, high, **options) if high is not None and least <= low < high <= most else NotImplemented


def random_decompositions(seeds: Seeds) -> dict[Any, Callable[..., Any]]:
    """Functional forms of eager's random operators, drawing from `seeds`."""
    draws = Draws(seeds)
    uniform, normal = draws.uniform_numbers, draws.normal_numbers
    names: dict[Any, Callable[..., Any]] = {
        aten.rand.default: functools.partial(draws.new, uniform), aten.randn.default: functools.partial(draws.new, normal),
        aten.rand_like.default: functools.partial(draws.like, uniform),
        aten.randn_like.default: functools.partial(draws.like, normal),
        aten.randint.default: functools.partial(draws.randint, 0), aten.randint.low: draws.randint,
        aten.randint_like.default: lambda like, high, **options: draws.randint_like(like, 0, high, **options),
        RANDOM_FROM: functools.partial(random_between, draws.randint_like),
        aten.randint_like.low_dtype: draws.randint_like, aten.bernoulli.default: draws.bernoulli,
        aten.bernoulli.p: draws.bernoulli_like, aten.bernoulli.Tensor: draws.bernoulli_like,
        aten.native_dropout.default: draws.native_dropout, aten.uniform.default: draws.uniform,
        aten.normal_functional.default: draws.normal_like, aten.normal.Tensor_float: draws.normal,
        aten.normal.Tensor_Tensor: draws.normal, aten.normal.float_Tensor: draws.normal,
        aten.exponential.default: draws.exponential,
    }  # fmt: skip
    return {name: unless_given_a_generator(function) for name, function in names.items()}


def unless_given_a_generator(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, but not where the user hands in a generator of their own: eager must draw from that."""

    def run(*args: Any, generator: Any = None, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if generator is None else NotImplemented

    return run


class Draws:
    """The operators themselves; each returns `NotImplemented` for what it does not cover, which stays extern."""

    def __init__(self, seeds: Seeds) -> None:
        self._seeds = seeds

    def uniform_numbers(self, size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Uniform on [0, 1)."""
        return ours.random_uniform(self._seeds.draw(device), size, dtype)

    def normal_numbers(self, size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Standard normal."""
        return ours.random_normal(self._seeds.draw(device), size, dtype)

    def new(self, draw: Any, size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        """`aten.rand` and `aten.randn`."""
        dtype, device = dtype or torch.get_default_dtype(), torch.device(device or "cpu")
        return draw(size, dtype, device) if dtype in FLOATS else NotImplemented

    def like(
        self, draw: Any, like: Tensor, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any
    ) -> Any:
        """`aten.rand_like` and `aten.randn_like`."""
        dtype, device = dtype or like.dtype, torch.device(device or like.device)
        if dtype not in FLOATS:
            return NotImplemented
        return in_layout_of(draw(like.shape, dtype, device), like, memory_format)

    def randint(self, low: int, high: int, size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        """`aten.randint`."""
        if not all(type(bound) is int for bound in (low, high)) or not 0 < high - low <= 2**32:
            return NotImplemented
        seed = self._seeds.draw(torch.device(device or "cpu"))
        return ours.random_randint(seed, low, high, size, dtype or torch.int64)

    def randint_like(self, like: Tensor, low: int, high: int, *, dtype: Any = None, device: Any = None,
                     memory_format: Any = None, **_: Any) -> Any:
        """`aten.randint_like`."""
        drawn = self.randint(low, high, like.shape, dtype=dtype or like.dtype, device=device or like.device)
        return drawn if drawn is NotImplemented else in_layout_of(drawn, like, memory_format)

    def bernoulli(self, probability: Tensor) -> Tensor:
        """`aten.bernoulli`."""
        drawn = self.uniform_numbers(probability.shape, wide_dtype(probability.dtype), probability.device)
        return in_layout_of((drawn < checked_unit(probability)).to(probability.dtype), probability, None)

    def bernoulli_like(self, like: Tensor, p: Any = 0.5) -> Tensor:
        """`aten.bernoulli.p`, and with a tensor of probabilities."""
        drawn = self.uniform_numbers(like.shape, torch.float32, like.device)
        limit = checked_unit(p.to(like.device)) if isinstance(p, Tensor) else p
        return in_layout_of((drawn < limit).to(like.dtype), like, None)

    def native_dropout(self, value: Tensor, p: float, train: bool | None) -> Any:
        """`aten.native_dropout`."""
        if train is False or p == 0.0:
            return value.clone(), torch.ones_like(value, dtype=torch.bool)
        if p == 1.0:
            return torch.zeros_like(value), torch.zeros_like(value, dtype=torch.bool)
        keep = in_layout_of(self.uniform_numbers(value.shape, torch.float32, value.device) >= p, value, None)
        return keep * value * (1.0 / (1.0 - p)), keep

    def uniform(self, like: Tensor, low: float = 0.0, high: float = 1.0) -> Any:
        """`aten.uniform`."""
        drawn = self.like(self.uniform_numbers, like)
        return drawn if drawn is NotImplemented else drawn * (high - low) + low

    def normal_like(self, like: Tensor, mean: float = 0.0, std: float = 1.0) -> Any:
        """`aten.normal_functional`."""
        drawn = self.like(self.normal_numbers, like)
        return drawn if drawn is NotImplemented else drawn * std + mean

    def normal(self, mean: Any, std: Any = 1.0) -> Any:
        """`aten.normal` with a tensor of means, of deviations, or of both."""
        tensors = [value for value in (mean, std) if isinstance(value, Tensor)]
        if tensors[0].dtype not in FLOATS:
            return NotImplemented
        size = torch.broadcast_shapes(*(value.shape for value in tensors))
        if isinstance(std, Tensor):
            std = ours.checked(std, std >= 0)
        return self.normal_numbers(size, tensors[0].dtype, tensors[0].device) * std + mean

    def exponential(self, like: Tensor, rate: float = 1.0) -> Any:
        """`aten.exponential`: above zero, as in eager, so that the logarithm of it is finite."""
        if like.dtype not in FLOATS:
            return NotImplemented
        wide = wide_dtype(like.dtype)
        negative_log = -torch.log(1.0 - self.uniform_numbers(like.shape, wide, like.device))
        return in_layout_of((negative_log.clamp(min=torch.finfo(wide).eps / 2) / rate).to(like.dtype), like, None)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which draws for `dtype` are compared and transformed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def in_memory_order(like: Tensor, p: float = 0.5, **options: Any) -> Any:
    """`aten.bernoulli.p` in place of eager's `bernoulli_`, which goes through memory where the functional form goes by rows.

    Where elements share memory it was the functional form: in eager's dropout inside of a transform of `torch.func`.
    """
    order, inverse = memory_order(like)
    if order == inverse == sorted(order) or 0 in like.stride():
        return NotImplemented
    return torch.bernoulli(like.permute(order), p, **options).permute(inverse)


def memory_order(like: Tensor) -> tuple[list[int], list[int]]:
    """The dimensions from the outermost in memory to the innermost, and the permutation back."""
    order = sorted(range(like.dim()), key=lambda dim: (like.stride(dim), like.size(dim)), reverse=True)
    return order, [order.index(dim) for dim in range(like.dim())]


def in_layout_of(value: Tensor, like: Tensor, memory_format: torch.memory_format | None) -> Tensor:
    """`value` laid out in memory as eager lays out its result for `like`: the numbers stay where they are."""
    if memory_format not in (None, torch.preserve_format):
        return value.contiguous(memory_format=memory_format)
    wanted = torch.empty_like(like)
    if wanted.stride() == value.stride():
        return value
    order, inverse = memory_order(wanted)
    return value.permute(order).contiguous().permute(inverse)
