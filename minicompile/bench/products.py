"""The section `products` of the benchmark: matrix products of many shapes, alone and with what follows them.

A case is a list of products, each timed by itself in a CUDA graph, so that the host has no share in it and the L2 is warm.
Eager is the vendor's product, with what follows it as kernels of their own.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from minicompile.bench.timing import graphed_milliseconds

Operands = tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Product:
    """Rows x columns x inner, in a layout: `forward` is x @ w.T of a weight, `input` and `weight` are its two gradients.

    `then` names what follows in the same function; a key of `FOLLOWED`.
    """

    rows: int
    columns: int
    inner: int
    layout: str = "forward"
    then: str = ""
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        kind = self.then or self.layout
        return f"{self.rows}x{self.columns}x{self.inner} {kind}" + " fp32" * (self.dtype == torch.float32)

    def operands(self, device: str) -> Operands:
        """Both factors as they lie in memory, and what follows them needs: a bias, a residual, a second weight."""
        made = functools.partial(torch.randn, device=device, dtype=self.dtype)
        left = made(self.inner, self.rows) if self.layout == "weight" else made(self.rows, self.inner)
        right = made(self.columns, self.inner) if self.layout == "forward" else made(self.inner, self.columns)
        if not self.then:
            return left, right
        return left, right, made(self.columns), made(self.rows, self.columns), made(self.columns, self.inner)

    @property
    def function(self) -> Callable[..., torch.Tensor]:
        """What is compiled."""
        return FOLLOWED[self.then] if self.then else PLAIN[self.layout]


PLAIN: dict[str, Callable[..., torch.Tensor]] = {
    "forward": lambda x, w: x @ w.t(),
    "input": lambda x, w: x @ w,
    "weight": lambda x, w: x.t() @ w,
}
# Of x, a weight, a bias, a residual and a second weight.
FOLLOWED: dict[str, Callable[..., torch.Tensor]] = {
    "bias": lambda x, w, b, r, u: F.linear(x, w, b),
    "gelu": lambda x, w, b, r, u: F.gelu(F.linear(x, w, b), approximate="tanh"),
    "silu": lambda x, w, b, r, u: F.silu(F.linear(x, w)),
    "residual": lambda x, w, b, r, u: F.linear(x, w, b) + r,
    "gated": lambda x, w, b, r, u: F.silu(F.linear(x, w)) * F.linear(x, u),
}
WIDTHS = (768, 1600, 2560)
TOKENS = 2048


def of_a_layer(width: int) -> list[Product]:
    """The products of a layer of the language model and of its head, and those of their gradients."""
    made = []
    for columns, inner in ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width), (10000, width)):
        made += [Product(TOKENS, columns, inner), Product(TOKENS, inner, columns, "input"),
                 Product(columns, inner, TOKENS, "weight")]  # fmt: skip
    return made


PRODUCTS: dict[str, list[Product]] = {
    "square": [Product(n, n, n) for n in (512, 1024, 2048, 4096, 8192)],
    **{f"width_{width}": of_a_layer(width) for width in WIDTHS},
    "few_rows": [Product(m, n, 4096) for m, n in itertools.product((1, 4, 16, 64), (4096, 11008))],
    "odd": [Product(*sizes) for sizes in (
        (4095, 4095, 4095), (4096, 4095, 4096), (2048, 50257, 768), (777, 1333, 2049), (1000, 1000, 1000))],
    **{f"then_{then}": [Product(*sizes, then=then) for sizes in (
        (2048, 3072, 768), (2048, 768, 3072), (8192, 4096, 1024), (4096, 14336, 4096))] for then in FOLLOWED},
    "fp32": [Product(n, n, n, then=then, dtype=torch.float32) for n in (1024, 4096) for then in ("", "gelu")],
}  # fmt: skip


def measured(products: list[Product], compile: Callable[..., Any], device: str, quick: bool) -> dict[str, float]:
    """Microseconds of each product, compiled for its sizes alone."""
    found = {}
    for product in products:
        if quick:
            sides = {side: min(getattr(product, side), 48) for side in ("rows", "columns", "inner")}
            product = dataclasses.replace(product, **sides)
        torch.compiler.reset()  # else the next sizes of one function are compiled as sizes that vary, and the ninth not at all
        call = functools.partial(compile(product.function, dynamic=False), *product.operands(device))
        found[str(product)] = 1e3 * graphed_milliseconds(call, device)
    return found
