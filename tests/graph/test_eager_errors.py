"""What eager's kernels refuse and PyTorch's fake ones do not is refused by the compiled function too, in eager's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minicompile

REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "fp16 filled under a mask": lambda x: x.half().masked_fill(x > 1, -1e9),
    "fp16 clamped": lambda x: x.half().clamp(max=7e4),
    "fp16 padded": lambda x: F.pad(x.half(), (1, 1), value=7e4),
    "fp16 scaled sum": lambda x: torch.add(x.half(), x.half(), alpha=7e4),
    "fp32 filled": lambda x: torch.full_like(x, 1e300),
    "bytes filled": lambda x: x.to(torch.uint8).fill_(300),
    "bytes clamped": lambda x: x.to(torch.uint8).clamp(max=300),
    "integers from infinity": lambda x: torch.full((2,), float("inf"), dtype=torch.int64) + x[:2],
    "truth subtracted": lambda x: x - True,
    "a mask subtracted": lambda x: x - (x > 1),
    "truth as a factor": lambda x: torch.add(x, x, alpha=True),
    "integers over zero": lambda x: x.long() // 0,
    "integers modulo zero": lambda x: x.long() % 0,
    "step of two dtypes": lambda x: torch.heaviside(x, x.long()),
    "product in place": lambda x: x.long().mul_(1.5),
    "product of masks in place": lambda x: (x > 1).mul_(2),
}

ALLOWED: dict[str, Callable[[torch.Tensor], Any]] = {
    "infinity and the lowest": lambda x: (x.half().masked_fill(x > 1, -torch.inf), x.half().clamp(torch.finfo(torch.half).min, 3)),
    "products overflow": lambda x: (x.half() * 7e4, x * 1e300, torch.where(x > 1, x.half(), -1e9)),
    "bytes take negative numbers": lambda x: torch.full((2,), -1, dtype=torch.uint8),
    "masks of masks": lambda x: torch.add(x > 1, x > 2, alpha=True),
    "floats over zero": lambda x: (x / 0, x // 0, x % 0.0, x.long() / 0),
    "products in place": lambda x: (x.clone().mul_(2), x.long().mul_(True), x.half().mul_(x)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_in_eager(name: str) -> None:
    x = torch.arange(4.0)
    with pytest.raises(RuntimeError) as eager:
        REFUSED[name](x)
    with pytest.raises(RuntimeError) as compiled:
        minicompile.compile(REFUSED[name])(x)
    assert str(compiled.value) == str(eager.value)


@pytest.mark.parametrize("name", ALLOWED)
def test_compiled_where_eager_computes(name: str) -> None:
    x = torch.arange(4.0)
    compiled = minicompile.compile(ALLOWED[name], options={"suppress_errors": False})
    torch.testing.assert_close(compiled(x), ALLOWED[name](x), equal_nan=True)
    assert not compiled.graph_breaks and not compiled.records.fallbacks


def test_an_operator_that_python_cannot_name_is_left_to_eager() -> None:
    results = []
    for function in (torch.Tensor.random_, minicompile.compile(lambda x, low, high: x.random_(low, high))):
        torch.manual_seed(0)
        results.append(function(torch.zeros(20), 2, 7))
    torch.testing.assert_close(*results)
