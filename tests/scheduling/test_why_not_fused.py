"""Every two operations that are in different kernels have a reason, and what does not pay can be forced."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import minicompile
from minicompile.config import Config
from minicompile.ir.schedule import DeviceProperties
from minicompile.scheduling.fusion import why_not_fused
from minicompile.scheduling.schedule import schedule_graph
from tests.scheduling.hand_made import GraphMaker, op

GPU = DeviceProperties(name="H200", kind="cuda")


def two_readers() -> GraphMaker:
    """Two large kernels that share little of what they read."""
    maker = GraphMaker()
    maker.input("shared", 1 << 10)
    for name, operator in (("a", "aten.exp.default"), ("b", "aten.mul.Tensor")):
        for number in range(3):
            maker.input(f"{name}{number}", 1 << 14, 1 << 10)
        maker.pointwise(f"out_{name}", (1 << 14, 1 << 10), lambda i, j, n=name: op("add" if n == "a" else "sub", op(
            "mul", maker.load(f"{n}0", i, j), maker.load(f"{n}1", i, j)), op("mul", maker.load(f"{n}2", i, j),
            maker.load("shared", j))), operator)  # fmt: skip
    return maker


def test_an_unprofitable_pair_says_the_bytes_and_can_be_forced() -> None:
    graph = two_readers().graph("out_a", "out_b")
    schedule = schedule_graph(graph, Config(verify=True), GPU)
    (record,) = why_not_fused(schedule, "exp", "mul")
    assert record.verdict == "unprofitable" and len(schedule.steps) == 2
    assert record.bytes_apart is not None and record.bytes_fused is not None and record.bytes_fused < record.bytes_apart
    forced = schedule_graph(graph, Config(verify=True, fuse=(("exp", "mul"),)), GPU)
    assert len(forced.steps) == 1


def softmax_of_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    hidden = F.linear(x, weight)
    return torch.softmax(hidden.transpose(0, 1).flip(0).contiguous(), -1)


def test_the_user_asks_by_operator_variable_and_line() -> None:
    compiled = minicompile.compile(softmax_of_linear, options={"cache": False, "matmul": "aten"})
    compiled(torch.randn(8, 16), torch.randn(12, 16))
    for name in ("linear", "hidden", f"{__name__.rpartition('.')[2]}.py:"
                 f"{softmax_of_linear.__code__.co_firstlineno + 1}"):
        records = minicompile.why_not_fused(compiled, name, "softmax")
        assert records and all(record.verdict == "illegal" for record in records)
        assert "is not generated code" in str(records[0])
    assert minicompile.why_not_fused(compiled, "softmax", "softmax")[0].verdict == "fused"
    with pytest.raises(LookupError, match="conv2d"):
        minicompile.why_not_fused(compiled, "conv2d", "softmax")
