"""Matrix products by our own kernel in compiled graphs: which pointwise loops become epilogues, their values and their text."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minicompile
from minicompile.compiler import matmul_chooser
from minicompile.config import Config
from minicompile.ir.schedule import DeviceProperties
from minicompile.scheduling.matmul import MatmulFacts
from tests.differential import check

OPTIONS = {"matmul": "triton", "suppress_errors": False, "verify": True, "fallback_random": True}
GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


def randn(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, dtype=dtype)


torch.manual_seed(4)
X, W, U, BIAS, RESIDUAL = randn(4, 6, 32), randn(40, 32), randn(40, 32), randn(40), randn(4, 6, 40)
A3, B3, C3 = randn(3, 5, 16), randn(3, 16, 7), randn(3, 5, 7)

# name: function, arguments, products, how many of them have an epilogue
FUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], int, int]] = {
    "bias alone": (lambda x, w, b: F.linear(x, w, b), (X, W, BIAS), 1, 0),
    "relu": (lambda x, w, b: F.relu(F.linear(x, w, b)), (X, W, BIAS), 1, 1),
    "gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (X, W, BIAS), 1, 1),
    "gelu of tanh": (lambda x, w: F.gelu(x @ w.t(), approximate="tanh"), (X, W), 1, 1),
    "silu": (lambda x, w: F.silu(F.linear(x, w)), (X, W), 1, 1),
    "residual": (lambda x, w, b, r: F.linear(x, w, b) + r, (X, W, BIAS, RESIDUAL), 1, 1),
    "residual of a row": (lambda x, w, b: F.linear(x, w) * b, (X, W, BIAS), 1, 1),
    "residual of a column": (lambda x, w, r: F.linear(x, w) * r[..., :1], (X, W, RESIDUAL), 1, 1),
    "scale and cast": (lambda x, w: (F.linear(x, w) * 0.125).to(torch.bfloat16), (X, W), 1, 1),
    "cast up": (lambda x, w: F.linear(x, w).float() + 1.0, (X.bfloat16(), W.bfloat16()), 1, 1),
    "gated pair": (lambda x, w, u: F.silu(x @ w.t()) * (x @ u.t()), (X, W, U), 2, 1),
    "gated pair, bf16": (
        lambda x, w, u: F.silu(x @ w.t()) * (x @ u.t()), (X.bfloat16(), W.bfloat16(), U.bfloat16()), 2, 1),
    "half of each": (lambda x, w: F.silu((x @ w.t())[..., :20]) * (x @ w.t())[..., 20:], (X, W), 1, 0),
    "transposed result": (lambda x, w: F.relu(F.linear(x, w)).transpose(1, 2).contiguous(), (X, W), 1, 0),
    "transposed matrix": (lambda x, w: F.relu(F.linear(x[0], w)).t().contiguous(), (X, W), 1, 1),
    "heads": (lambda x, w: torch.tanh(F.linear(x, w)).view(4, 6, 5, 8).transpose(1, 2), (X, W), 1, 1),
    "product needed too": (lambda x, w: ((h := F.linear(x, w)), F.gelu(h)), (X, W), 1, 1),
    "bmm": (lambda a, b, c: torch.bmm(a, b).sigmoid() + c, (A3, B3, C3), 1, 1),
    "baddbmm": (lambda a, b, c: torch.baddbmm(c, a, b, beta=0.5, alpha=2.0).tanh(), (A3, B3, C3), 1, 1),
    "addmm with factors": (lambda a, b, c: torch.addmm(c[0], a[0], b[0], beta=-1, alpha=0.5), (A3, B3, C3), 1, 0),
    "one row": (lambda x, w: F.relu(F.linear(x[0, :1], w)), (X, W), 1, 1),
    "position": (lambda x, w: F.linear(x, w) + torch.arange(40.0), (X, W), 1, 1),
    "masked": (lambda x, w: F.linear(x, w).masked_fill(torch.ones(6, 40, dtype=torch.bool).triu(), 0.0), (X, W), 1, 0),
    "chain": (lambda x, w, v: F.linear(F.gelu(F.linear(x, w)), v), (X, W, randn(16, 40)), 2, 1),
    "reduced": (lambda x, w: F.linear(x, w).sum(-1), (X, W), 1, 0),
    "softmax": (lambda x, w: F.linear(x, w).softmax(-1), (X, W), 1, 0),
    "padded": (lambda x, w: F.pad(F.linear(x, w), (1, 1)), (X, W), 1, 0),
    "in place": (lambda x, w, r: r.clone().add_(F.linear(x, w)), (X, W, RESIDUAL), 1, 1),
    "fp64 is the vendor's": (lambda x, w: F.relu(F.linear(x, w)), (X.double(), W.double()), 0, 0),
}  # fmt: skip


def compiled_text(function: Callable[..., Any], arguments: tuple[torch.Tensor, ...], **options: Any) -> str:
    compiled = minicompile.compile(function, options=OPTIONS | options)
    compiled(*arguments)
    ((_, text),) = minicompile.sources(compiled).items()
    return text


@pytest.mark.parametrize("name", FUSED)
def test_values_and_number_of_epilogues(name: str) -> None:
    function, arguments, products, epilogues = FUSED[name]
    check(function, *arguments, compile=lambda f: minicompile.compile(f, options=OPTIONS), backward=False, tolerance=8.0)
    text = compiled_text(function, arguments)
    called = [line for line in text.splitlines() if re.match(r"\s*fused_matmul(_\d+)?\(", line)]
    assert (len(called), sum("epilogue=" in line for line in called)) == (products, epilogues)


@pytest.mark.parametrize("name", ["gelu", "gated pair", "residual", "chain"])
def test_gradients(name: str) -> None:
    function, arguments, _, _ = FUSED[name]
    leaves = tuple(argument.detach().clone().requires_grad_() for argument in arguments)
    check(function, *leaves, compile=lambda f: minicompile.compile(f, options=OPTIONS), backward=True, tolerance=8.0)


def test_equal_layers_share_an_epilogue() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = F.gelu(F.linear(x, w)) @ v
        return x

    text = compiled_text(layers, (X, W, randn(40, 32)))
    assert text.count("_epilogue(product") == 1 and text.count("epilogue=") == 3


def test_a_product_is_rounded_first_where_eager_rounds_it() -> None:
    arguments = (randn(64, 64).bfloat16(), randn(64, 64).bfloat16())
    function = lambda a, b: (a @ b) * 3.0
    compiled = minicompile.compile(function, options=OPTIONS | {"emulate_precision_casts": True})
    assert torch.equal(compiled(*arguments), function(*arguments))


@pytest.mark.parametrize("name", ["residual", "gated pair, bf16", "product needed too"])
def test_the_text_of_an_epilogue(name: str, request: pytest.FixtureRequest) -> None:
    function, arguments, _, _ = FUSED[name]
    text = compiled_text(function, arguments)
    kept = text[text.index("@triton.jit") : text.index("def sample(")].rstrip() + "\n"
    kept = "\n".join(line for line in kept.splitlines() if not line.startswith("#")) + "\n"
    path = GOLDEN / f"epilogue_{name.replace(' ', '_').replace(',', '')}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(kept)
    assert path.read_text() == kept


def test_who_computes_a_product() -> None:
    """On a GPU by the model, with the reason; on the CPU only if asked."""
    gpu, cpu = DeviceProperties(kind="cuda"), DeviceProperties(kind="cpu")
    assert matmul_chooser(Config(), cpu) is None and matmul_chooser(Config(matmul="aten"), gpu) is None
    choose = matmul_chooser(Config(), gpu)
    assert choose is not None
    tile, reason = choose(MatmulFacts(1, 4096, 4096, 4096, torch.bfloat16, True))
    assert tile is None and "vendor" in reason
    tile, reason = choose(MatmulFacts(1, 2048, 50257, 768, torch.bfloat16, True))
    assert tile is not None and "16 bytes" in reason
    tile, reason = choose(MatmulFacts(1, 2048, 768, 768, torch.float32, True, bytes_saved=2 * 2048 * 768 * 4))
    assert tile is not None and "epilogue" in reason
    tile, reason = choose(MatmulFacts(1, 8192, 4096, 1024, torch.bfloat16, True, bytes_saved=2 * 8192 * 4096 * 2))
    assert tile is None and "vendor" in reason
