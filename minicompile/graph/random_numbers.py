"""Random operators as pure functions of seeds drawn once per run.

One `minicompile::seeds` node at the head of the graph draws a key per random operator; each operator reads its own. With
`Config.fallback_random` nothing here is used and eager's operators stay in the graph. This module must not know kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from minicompile.graph.recorder import Recorder

aten = torch.ops.aten
ours = torch.ops.minicompile
SIXTEEN_AND_UP = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Seeds:
    """Hands out one key per random operator of a graph, per device."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._drawn: dict[torch.device, tuple[Tensor, Node, int]] = {}

    def draw(self, device: torch.device) -> tuple[Tensor, int]:
        """The seeds tensor of `device` and the index of a key nobody else has."""
        recorder = self._recorder
        recorder.mark_unrepeatable()
        if device not in self._drawn:
            first = next((n for n in recorder.graph.nodes if n.op != "placeholder"), None)
            value = recorder.fake_empty((1,), torch.int64, device)
            graph = recorder.graph
            with graph.inserting_before(first) if first is not None else graph.inserting_after():
                node = graph.call_function(ours.seeds.default, (1,), {"device": device})
            node.meta.update(val=value, stage="forward")
            recorder.register(value, node)
            self._drawn[device] = (value, node, 0)
        value, node, count = self._drawn[device]  # type: ignore[assignment]
        self._drawn[device] = (value, node, count + 1)
        return value, count

    def close(self) -> None:
        """Write the final number of keys into the seed nodes."""
        for device, (_, node, count) in self._drawn.items():
            node.args = (count,)
            node.meta["val"] = self._recorder.fake_empty((count,), torch.int64, device)


def random_decompositions(seeds: Seeds) -> dict[Any, Callable[..., Any]]:
    """Functional forms of eager's random operators, drawing from `seeds`."""
    draws = Draws(seeds)
    names = {
        aten.rand.default: draws.rand, aten.randn.default: draws.randn, aten.rand_like.default: draws.rand_like,
        aten.randn_like.default: draws.randn_like, aten.randint.default: draws.randint,
        aten.randint.low: draws.randint_low, aten.randint_like.default: draws.randint_like,
        aten.randint_like.low_dtype: draws.randint_like_low, aten.bernoulli.default: draws.bernoulli,
        aten.bernoulli.p: draws.bernoulli_p, aten.bernoulli.Tensor: draws.bernoulli_tensor,
        aten.native_dropout.default: draws.native_dropout, aten.uniform.default: draws.uniform,
        aten.normal_functional.default: draws.normal_functional, aten.normal.Tensor_float: draws.normal_tensor,
        aten.normal.Tensor_Tensor: draws.normal_tensor, aten.normal.float_Tensor: draws.normal_float_tensor,
        aten.exponential.default: draws.exponential,
    }  # fmt: skip
    return names  # type: ignore[return-value]


class Draws:
    """The operators themselves; each returns `NotImplemented` for what it does not cover, which stays extern."""

    def __init__(self, seeds: Seeds) -> None:
        self._seeds = seeds

    def _uniform(self, size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
        value, index = self._seeds.draw(device)
        return ours.random_uniform(value, index, size, dtype)

    def _normal(self, size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
        value, index = self._seeds.draw(device)
        return ours.random_normal(value, index, size, dtype)

    def _open_uniform(self, like: Tensor) -> Tensor:
        """Uniform on (0, 1]."""
        return 1.0 - self._uniform(like.shape, wide_dtype(like.dtype), like.device)

    def rand(self, size: Any, *, generator: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
             pin_memory: Any = None) -> Any:
        """`aten.rand`."""
        dtype, device = dtype or torch.get_default_dtype(), torch.device(device or "cpu")
        if dtype not in SIXTEEN_AND_UP or generator is not None:
            return NotImplemented
        return self._uniform(size, dtype, device)

    def randn(self, size: Any, *, generator: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
              pin_memory: Any = None) -> Any:
        """`aten.randn`."""
        dtype, device = dtype or torch.get_default_dtype(), torch.device(device or "cpu")
        if dtype not in SIXTEEN_AND_UP or generator is not None:
            return NotImplemented
        return self._normal(size, dtype, device)

    def rand_like(self, like: Tensor, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Any:
        """`aten.rand_like`."""
        return self._like(self._uniform, like, dtype, device, memory_format)

    def randn_like(self, like: Tensor, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Any:
        """`aten.randn_like`."""
        return self._like(self._normal, like, dtype, device, memory_format)

    def _like(self, draw: Any, like: Tensor, dtype: Any, device: Any, memory_format: Any) -> Any:
        dtype, device = dtype or like.dtype, torch.device(device or like.device)
        if dtype not in SIXTEEN_AND_UP:
            return NotImplemented
        return in_layout_of(draw(like.shape, dtype, device), like, memory_format)

    def randint(self, high: int, size: Any, **options: Any) -> Any:
        """`aten.randint`."""
        return self.randint_low(0, high, size, **options)

    def randint_low(self, low: int, high: int, size: Any, *, generator: Any = None, dtype: Any = None,
                    layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
        """`aten.randint.low`."""
        dtype, device = dtype or torch.int64, torch.device(device or "cpu")
        if generator is not None or not all(type(bound) is int for bound in (low, high)) or not 0 < high - low <= 2**32:
            return NotImplemented
        value, index = self._seeds.draw(device)
        return ours.random_randint(value, index, low, high, size, dtype)

    def randint_like(self, like: Tensor, high: int, **options: Any) -> Any:
        """`aten.randint_like`."""
        return self.randint_like_low(like, 0, high, **options)

    def randint_like_low(self, like: Tensor, low: int, high: int, *, dtype: Any = None, device: Any = None,
                         memory_format: Any = None, **_: Any) -> Any:
        """`aten.randint_like.low_dtype`."""
        drawn = self.randint_low(low, high, like.shape, dtype=dtype or like.dtype, device=device or like.device)
        return drawn if drawn is NotImplemented else in_layout_of(drawn, like, memory_format)

    def bernoulli(self, probability: Tensor, *, generator: Any = None) -> Any:
        """`aten.bernoulli`."""
        if generator is not None:
            return NotImplemented
        drawn = self._uniform(probability.shape, wide_dtype(probability.dtype), probability.device)
        return in_layout_of((drawn < probability).to(probability.dtype), probability, None)

    def bernoulli_p(self, like: Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
        """`aten.bernoulli.p`."""
        if generator is not None:
            return NotImplemented
        drawn = self._uniform(like.shape, torch.float32, like.device)
        return in_layout_of((drawn < p).to(like.dtype), like, None)

    def bernoulli_tensor(self, like: Tensor, p: Tensor, *, generator: Any = None) -> Any:
        """`aten.bernoulli.Tensor`."""
        if generator is not None:
            return NotImplemented
        drawn = self._uniform(like.shape, torch.float32, like.device)
        return in_layout_of((drawn < p.to(like.device)).to(like.dtype), like, None)

    def native_dropout(self, value: Tensor, p: float, train: bool | None) -> Any:
        """`aten.native_dropout`."""
        if train is False or p == 0.0:
            return value.clone(), torch.ones_like(value, dtype=torch.bool)
        if p == 1.0:
            return torch.zeros_like(value), torch.zeros_like(value, dtype=torch.bool)
        keep = in_layout_of(self._uniform(value.shape, torch.float32, value.device) >= p, value, None)
        return keep * value * (1.0 / (1.0 - p)), keep

    def uniform(self, like: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
        """`aten.uniform`."""
        if generator is not None or like.dtype not in SIXTEEN_AND_UP:
            return NotImplemented
        return in_layout_of(self._uniform(like.shape, like.dtype, like.device) * (high - low) + low, like, None)

    def normal_functional(self, like: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
        """`aten.normal_functional`."""
        if generator is not None or like.dtype not in SIXTEEN_AND_UP:
            return NotImplemented
        return in_layout_of(self._normal(like.shape, like.dtype, like.device) * std + mean, like, None)

    def normal_tensor(self, mean: Tensor, std: Any = 1.0, *, generator: Any = None) -> Any:
        """`aten.normal` with a tensor of means."""
        if generator is not None or mean.dtype not in SIXTEEN_AND_UP:
            return NotImplemented
        size = torch.broadcast_shapes(mean.shape, std.shape) if isinstance(std, Tensor) else mean.shape
        return self._normal(size, mean.dtype, mean.device) * std + mean

    def normal_float_tensor(self, mean: float, std: Tensor, *, generator: Any = None) -> Any:
        """`aten.normal` with a tensor of deviations."""
        if generator is not None or std.dtype not in SIXTEEN_AND_UP:
            return NotImplemented
        return self._normal(std.shape, std.dtype, std.device) * std + mean

    def exponential(self, like: Tensor, rate: float = 1.0, *, generator: Any = None) -> Any:
        """`aten.exponential`."""
        if generator is not None or like.dtype not in SIXTEEN_AND_UP:
            return NotImplemented
        return in_layout_of((-torch.log(self._open_uniform(like)) / rate).to(like.dtype), like, None)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which draws for `dtype` are compared and transformed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def in_layout_of(value: Tensor, like: Tensor, memory_format: torch.memory_format | None) -> Tensor:
    """`value` laid out in memory as eager lays out its result for `like`: the numbers stay where they are."""
    if memory_format not in (None, torch.preserve_format):
        return value.contiguous(memory_format=memory_format)
    wanted = torch.empty_like(like)
    if wanted.stride() == value.stride():
        return value
    order = sorted(range(like.dim()), key=lambda dim: (wanted.stride(dim), wanted.size(dim)), reverse=True)
    inverse = [order.index(dim) for dim in range(like.dim())]
    return value.permute(order).contiguous().permute(inverse)
