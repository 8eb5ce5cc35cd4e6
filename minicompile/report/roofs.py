"""What the machine can do at best: copy bandwidth, matrix rate by dtype, launch latency; measured once, kept on disk.

A machine without a GPU gets the roofs recorded for one H200, marked as not measured.
"""

import functools
import json
import pathlib
import re
from collections.abc import Callable

import torch

from minicompile.kernels.matmul_model import BYTES_PER_SECOND, LAUNCH_SECONDS, MATRIX_RATE
from minicompile.report.records import Roofs

Milliseconds = Callable[[Callable[[], object], str], float]
VECTOR_FLOPS = 60e12
"""Rate of scalar fp32 arithmetic on one H200; there is no library call that measures it."""

RECORDED = Roofs(
    "H200 (recorded)", False, BYTES_PER_SECOND,
    {"bf16": MATRIX_RATE["half"], "f16": MATRIX_RATE["half"], "tf32": MATRIX_RATE["tf32"], "f32": MATRIX_RATE["fp32"],
     "vector": VECTOR_FLOPS},
    LAUNCH_SECONDS * 1e6,
)  # fmt: skip


def measure_roofs(device: str, quick: bool, milliseconds: Milliseconds) -> dict[str, float]:
    """Copy in TB/s, matrix products in TFLOP/s, the smallest kernel in µs, by name."""
    elements = 1 << (16 if quick else 28)
    source = torch.randn(elements, device=device)
    target = torch.empty_like(source)
    roofs = {"copy TB/s": 2 * source.nbytes / milliseconds(functools.partial(target.copy_, source), device) / 1e9}
    del source, target
    for n in (64,) if quick else (1024, 2048, 4096, 8192):
        roofs[f"bf16 {n} TFLOP/s"] = product_tflops(n, torch.bfloat16, device, milliseconds)
    n = 64 if quick else 4096
    roofs[f"fp16 {n} TFLOP/s"] = product_tflops(n, torch.float16, device, milliseconds)
    before = torch.get_float32_matmul_precision()
    for precision, name in (("highest", "fp32"), ("high", "tf32")):
        torch.set_float32_matmul_precision(precision)
        roofs[f"{name} {n} TFLOP/s"] = product_tflops(n, torch.float32, device, milliseconds)
    torch.set_float32_matmul_precision(before)
    one = torch.zeros(1, device=device)
    roofs["launch us"] = milliseconds(lambda: one.add_(1), device) * 1e3
    return roofs


def product_tflops(n: int, dtype: torch.dtype, device: str, milliseconds: Milliseconds) -> float:
    """Rate of a square matrix product."""
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / milliseconds(lambda: a @ b, device) / 1e9


def from_figures(device: str, figures: dict[str, float]) -> Roofs:
    """The roofs behind a table of figures: the best of each kind."""
    short = {"bf16": "bf16", "fp16": "f16", "tf32": "tf32", "fp32": "f32"}
    rates = {"vector": VECTOR_FLOPS}
    for name, value in figures.items():
        kind = short.get(name.split()[0])
        if kind is not None:
            rates[kind] = max(rates.get(kind, 0.0), value * 1e12)
    return Roofs(device, True, figures["copy TB/s"] * 1e12, rates, figures["launch us"])


def roofs_of(device: str, directory: pathlib.Path, milliseconds: Milliseconds) -> Roofs:
    """This machine's roofs, measured at the first use and read from `directory` afterwards."""
    if device != "cuda":
        return RECORDED
    name = torch.cuda.get_device_name()
    path = directory / f"roofs-{re.sub(r'[^A-Za-z0-9]+', '-', f'{name}-{torch.__version__}')}.json"
    try:
        return from_figures(name, json.loads(path.read_text()))
    except (OSError, ValueError, KeyError):
        figures = measure_roofs(device, False, milliseconds)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures))
    except OSError:  # a folder that cannot be written only costs the next measurement
        pass
    return from_figures(name, figures)
