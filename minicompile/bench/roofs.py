"""What the machine can do at best, measured: copy bandwidth, and the vendor's matrix products."""

from __future__ import annotations

import functools

import torch

from minicompile.bench.timing import milliseconds


def measure_roofs(device: str, quick: bool) -> dict[str, float]:
    """Copy in TB/s, and matrix products in TFLOP/s, by name."""
    elements = 1 << (16 if quick else 30)
    source = torch.randn(elements, device=device)
    target = torch.empty_like(source)
    roofs = {"copy TB/s": 2 * source.nbytes / milliseconds(functools.partial(target.copy_, source), device) / 1e9}
    del source, target
    for n in (64,) if quick else (1024, 2048, 4096, 8192):
        roofs[f"bf16 {n} TFLOP/s"] = product_tflops(n, torch.bfloat16, device)
    n = 64 if quick else 4096
    for precision, name in (("highest", "fp32"), ("high", "tf32")):
        torch.set_float32_matmul_precision(precision)
        roofs[f"{name} {n} TFLOP/s"] = product_tflops(n, torch.float32, device)
    torch.set_float32_matmul_precision("highest")
    return roofs


def product_tflops(n: int, dtype: torch.dtype, device: str) -> float:
    """Rate of a square matrix product."""
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / milliseconds(lambda: a @ b, device) / 1e9
