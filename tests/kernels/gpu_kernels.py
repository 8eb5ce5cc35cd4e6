"""The kernels on a GPU: correctness over random problems, then speed beside PyTorch's kernels, configuration by configuration.

    python tests/kernels/gpu_kernels.py PART...
    parts: correctness  diagnose  large  attention  attention_backward  fp32  decode  matmul  matmul_alone  matmul_graphs
           epilogues  cross_entropy  masks

The newer parts stop after `BUDGET_SECONDS`, the others take up to four minutes; each prints one line per row; with `OUT` set, rows also go to $OUT/kernels_PART.json.
The lines carry all that is needed to update `minicompile/kernels/configs.py`. Compilation is done first, in parallel
processes that fill Triton's disk cache.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as functional
import triton
import triton.language as tl
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench

import minicompile
from minicompile.bench.products import FOLLOWED
from minicompile.bench.timing import graphed_milliseconds
from minicompile.graph import linear_cross_entropy as recognition
from minicompile.kernels import flash_attention as differentiable_attention
from minicompile.kernels.attention_problem import AttentionProblem, describe, expand_mask, padded_head_dim
from minicompile.kernels.configs import AttentionConfig, MatmulConfig, attention_tile
from minicompile.kernels.flash_attention import (
    _delta,
    _key_gradient,
    _query_gradient,
    _ways,
    attention_backward,
    attention_forward,
)
from minicompile.kernels.flash_decode import choose_splits, flash_decode
from minicompile.kernels.matmul import matmul
from minicompile.kernels.matmul_model import MatmulProblem, choose, rank_configs
from tests.kernels.attention_candidates import ATTENTION_CANDIDATES
from tests.kernels.attention_cases import (
    attention_reference,
    errors,
    failures,
    large_score_failures,
    operands,
    random_cases,
)

WORKERS = min(14, os.cpu_count() or 1)
BUDGET_SECONDS = 100.0
ROWS: list[dict[str, Any]] = []


def report(**row: Any) -> None:
    """Print one row and keep it."""
    ROWS.append(row)
    cells = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())
    print("  ".join(f"{name}={cell}" for name, cell in zip(row, cells)), flush=True)


def milliseconds(call: Callable[[], object], rep: int = 40) -> float:
    """Median time of a call."""
    return do_bench(call, warmup=15, rep=rep, return_mode="median")


def timely(items: Iterable[Any]) -> Iterator[Any]:
    """The items, until the part's time is up; says how many were left."""
    deadline, waiting = time.time() + BUDGET_SECONDS, list(items)
    while waiting and time.time() < deadline:
        yield waiting.pop(0)
    if waiting:
        report(out_of_time=len(waiting))


def in_parallel(task: Callable[[Any], Any], jobs: Iterable[Any], fresh: bool = False) -> list[Any]:
    """Results of `task` over jobs in worker processes, in order; `fresh`: each job in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(WORKERS, maxtasksperchild=1 if fresh else None) as pool:
        return pool.map(task, list(jobs), chunksize=1)


# ---------------------------------------------------------------- correctness


def check_case(case: Any) -> tuple[list[str], dict[str, float], bool]:
    """What is wrong with one case, its errors, and whether the process is beyond use (a fault on the GPU)."""
    try:
        measured = errors(case, "cuda")
        return failures(case, measured) + repeats(case), measured, False
    except Exception:
        reason = traceback.format_exc(limit=-3)[-900:]
    try:
        torch.cuda.synchronize()
        return [reason], {}, False
    except Exception:
        return [f"POISONED THE PROCESS: {reason}"], {}, True


def serve_cases(pipe: Any) -> None:
    """A worker: cases in, results out, until it is told to stop or the GPU has faulted."""
    while (case := pipe.recv()) is not None:
        found = check_case(case)
        pipe.send(found)
        if found[2]:
            return


def checked(cases: list[Any], deadline: float) -> list[tuple[Any, list[str], dict[str, float]]]:
    """Each case in one of several workers, one at a time; a worker that a case kills or poisons is replaced."""
    waiting, results = list(reversed(cases)), []
    context = multiprocessing.get_context("spawn")

    def drive() -> None:
        worker = pipe = None
        while waiting and time.time() < deadline:
            try:
                case = waiting.pop()
            except IndexError:
                break
            if worker is None:
                pipe, theirs = context.Pipe()
                worker = context.Process(target=serve_cases, args=(theirs,), daemon=True)
                worker.start()
                theirs.close()
            try:
                pipe.send(case)
                wrong, measured, poisoned = pipe.recv()
            except (EOFError, OSError):
                wrong, measured, poisoned = ["KILLED THE PROCESS"], {}, True
            results.append((case, wrong, measured))
            if poisoned:
                worker.join(5)
                worker = None
        if worker is not None:
            pipe.send(None)

    drivers = [threading.Thread(target=drive) for _ in range(WORKERS)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    return results


def repeats(case: Any) -> list[str]:
    """Whether a second run gives other bits."""
    given = operands(case, "cuda")
    q, k, v = given["q"], given["k"], given["v"]
    shared = (given["mask"], case.lower, case.upper, case.scale, case.dropout, given["seed"], False, case.precision)
    runs = []
    for _ in range(2):
        out, lse = attention_forward(q, k, v, *shared)
        runs.append((out, lse, *attention_backward(given["dout"], q, k, v, out, lse, *shared)[:3]))
    return [] if all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(*runs)) else ["two runs differ"]


def correctness() -> None:
    """About a thousand random problems against fp64, twice each."""
    results = checked(random_cases(1000, seed=2026, most_length=700, device="cuda"), time.time() + BUDGET_SECONDS)
    worst: dict[tuple[str, str], float] = {}
    for case, wrong, measured in results:
        kind = str(case.dtype)[6:] + (case.precision or "")
        for name, error in measured.items():
            worst[kind, name] = max(worst.get((kind, name), 0.0), error)
        if wrong:
            report(case=str(case), wrong="; ".join(wrong))
    for d in (16, 64, 128, 256):
        for magnitude in (30, 100, 400):
            report(large_scores=magnitude, d=d, wrong=large_score_failures("cuda", d, magnitude, (None, None, None)))
    for (kind, name), error in sorted(worst.items()):
        report(dtype=kind, result=name, worst=error)
    report(cases=len(results), wrong=sum(bool(wrong) for _, wrong, _ in results))


def wrong_region(got: torch.Tensor, want: torch.Tensor) -> str:
    """Which rows and columns of which heads differ, in short."""
    bad = ((got.double() - want).abs() > 0.02 * want.abs().max()).nonzero()
    if not len(bad):
        return "right"
    spans = [sorted(set(column.tolist())) for column in bad.T]
    return f"{len(bad)} of {want.numel()} wrong; " + " ".join(
        f"{name} {span[:6]}..{span[-1]} ({len(span)})" for name, span in zip(("batch", "head", "row", "column"), spans)
    )


def diagnose_one(job: tuple[str, int, int, int, int, bool, str, str]) -> str:
    """Forward with a tile and head dims of their own, values tiled as narrow as they are, against fp64."""
    dtype, queries, keys, d, dv, sliced, tile, mask = job
    constants = AttentionProblem.constants
    narrow = lambda self, config: constants(self, config) | {"BLOCK_DV": padded_head_dim(self.dv)}
    extra = int(sliced)
    shapes = ((2, 4, queries + extra, d + extra), (2, 2, keys + extra, d + extra), (2, 2, keys + extra, dv + extra))
    q, k, v = (torch.randn(s, device="cuda").to(getattr(torch, dtype))[:, :, extra:, extra:] for s in shapes)
    bias = torch.randn(2, 4, queries, keys, device="cuda").to(q.dtype) if mask == "bias" else None
    want = attention_reference(*(t.double() for t in (q, k, v)), None if bias is None else bias.double(), upper=0)[0]
    with mock.patch.object(AttentionProblem, "constants", narrow):
        try:
            out = attention_forward(q, k, v, bias, upper=0, config=attention_tile(tile), precision=None)[0]
            torch.cuda.synchronize()
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:120]}"
    return wrong_region(out, want)


def diagnose() -> None:
    """Where the values are wrong of the tiles that were found wrong, and of their neighbours."""
    jobs = [
        ("float16", 128, keys, 72, dv, sliced, tile, mask)
        for keys, dv, sliced, mask in (
            (128, 16, True, "bias"), (128, 16, True, "none"), (64, 16, True, "bias"), (128, 16, False, "bias"),
            (128, 32, True, "bias"), (128, 64, True, "bias"), (256, 16, True, "none"))
        for tile in ("128x128 w8 s2", "128x128 w8 s1", "128x64 w8 s2", "64x64 w4 s2")
    ] + [
        ("float32", 33, keys, d, d, False, tile, "none")
        for keys in (33, 64) for d in (160, 256)
        for tile in ("64x16 w8 s1 one", "64x16 w4 s1 one", "64x32 w4 s1 one", "32x16 w4 s1 one", "16x32 w8 s1 one")
    ]  # fmt: skip
    for job, found in zip(jobs, in_parallel(diagnose_one, jobs, fresh=True)):
        report(job=job, found=found)


def large() -> None:
    """More than 2**31 elements: the last head must come out as it does alone."""
    q, k, v, dout = (torch.randn(17, 16, 65536, 128, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    out, lse = attention_forward(q, k, v, upper=0)
    last = [t[-1:, -1:] for t in (q, k, v)]
    alone, alone_lse = attention_forward(*(t.clone() for t in last), upper=0)
    report(
        elements=q.numel(),
        forward_equal=torch.equal(out[-1:, -1:], alone),
        lse_equal=torch.equal(lse[-1:, -1:], alone_lse),
    )
    got = attention_backward(dout, q, k, v, out, lse, upper=0)
    want = attention_backward(dout[-1:, -1:].clone(), *(t.clone() for t in last), alone, alone_lse, upper=0)
    report(key_gradients_equal=[torch.equal(a[-1:, -1:], b) for a, b in zip(got[1:3], want[1:3])])
    report(query_gradient_differs=float((got[0][-1:, -1:] - want[0]).abs().max() / want[0].abs().max()))
    # A bias of more than 2**31 elements, read by stride.
    del got, want, out, k, v, dout
    q, k, v = (torch.randn(1, 9, 16384, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    bias = torch.randn(1, 9, 16384, 16384, device="cuda", dtype=torch.bfloat16)
    out, _ = attention_forward(q, k, v, bias)
    alone, _ = attention_forward(*(t[:, -1:].clone() for t in (q, k, v)), bias[:, -1:].clone())
    report(bias_elements=bias.numel(), forward_equal=torch.equal(out[:, -1:], alone))


# ---------------------------------------------------------------- attention speed

GRID = [(causal, d, s) for causal in (False, True) for d in (64, 128) for s in (1024, 4096, 16384)]
EXTRA_HALF = {"forward": ("128x128 w8 s2 tma", "128x128 w8 s3 tma", "64x64 w4 s4 tma")}


def half_tensors(d: int, s: int) -> list[torch.Tensor]:
    """q, k, v, dout of 16,384 tokens, 2,048 wide."""
    shape = (16384 // s, 2048 // d, s, d)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


def candidates(phase: str, numerics: str, d: int) -> list[str]:
    """Tiles to time."""
    more = EXTRA_HALF.get(phase, ()) if numerics == "half" and d <= 128 else ()
    return list(dict.fromkeys((*ATTENTION_CANDIDATES[phase, numerics, d], *more)))


def pass_call(
    phase: str, tensors: list[torch.Tensor], causal: bool, tile: str | AttentionConfig | None, precision: str | None
) -> Any:
    """A function that runs one pass with one tile, or with what is chosen without one."""
    q, k, v, dout = tensors
    config = attention_tile(tile) if isinstance(tile, str) else tile
    upper = 0 if causal else None
    if phase == "forward":
        return lambda: attention_forward(q, k, v, upper=upper, precision=precision, config=config)
    problem = describe(q, k, v, None, None, upper, None, 0.0, False, precision)
    ways, statistics = _ways(problem, q, k, v, dout), torch.zeros(q.shape[:3], device=q.device)
    shared = ((statistics, statistics, statistics + 1.0), (q, expand_mask(None, problem)[1], q), (None, (0, 0)))
    if phase == "query gradient":
        return lambda: _query_gradient(ways, q, *shared, None, config)
    return lambda: _key_gradient(ways, k, v, *shared, config)


def compile_pass(job: tuple[str, str, int, bool, str, str | None]) -> str:
    """Fill Triton's cache with one kernel; the reason if it fails."""
    phase, dtype, d, causal, tile, precision = job
    batch, heads = (8, 1) if dtype == "float32" else (1, 16)
    tensors = [torch.zeros((batch, heads, 1024, d), device="cuda", dtype=getattr(torch, dtype)) for _ in range(4)]
    try:
        pass_call(phase, tensors, causal, tile, precision)()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    return ""


def time_passes(phases: tuple[str, ...]) -> None:
    """Each candidate of each pass over the grid, beside FlashAttention-2 and cuDNN."""
    jobs = [
        (p, "bfloat16", d, c, t, None)
        for p in phases
        for d in (64, 128)
        for c in (False, True)
        for t in candidates(p, "half", d)
    ]
    broken = {job: why for job, why in zip(jobs, in_parallel(compile_pass, jobs)) if why}
    for job, why in broken.items():
        report(broken=str(job), why=why)
    for causal, d, s in GRID:
        tensors = half_tensors(d, s)
        flops = 4 * 16384 * 2048 * s / (2 if causal else 1) / 1e9
        bests: dict[str, float] = {}
        for phase in phases:
            share = {"forward": 1.0, "query gradient": 1.5, "key gradient": 2.0}[phase]
            timed = {}
            for tile in candidates(phase, "half", d):
                if (phase, "bfloat16", d, causal, tile, None) not in broken:
                    timed[tile] = milliseconds(pass_call(phase, tensors, causal, tile, None))
            if phase == "forward":
                timed["as chosen"] = milliseconds(pass_call(phase, tensors, causal, None, None))
            bests[phase] = min(timed.values())
            ranked = sorted(timed.items(), key=lambda item: item[1])
            report(
                phase=phase, causal=causal, d=d, s=s, best=ranked[0][0], TFLOPs=share * flops / ranked[0][1],
                all=" | ".join(f"{tile}: {share * flops / ms:.0f}" for tile, ms in ranked),
            )  # fmt: skip
        rivals(causal, d, s, tensors, flops, bests)


def rivals(causal: bool, d: int, s: int, tensors: list[torch.Tensor], flops: float, bests: dict[str, float]) -> None:
    """PyTorch's two kernels on the same row, and the ratio."""
    backward = "forward" not in bests
    row: dict[str, Any] = {"row": "backward" if backward else "forward", "causal": causal, "d": d, "s": s}
    q, k, v, dout = tensors
    problem = describe(q, k, v, None, None, None, None, 0.0, False, None)
    if backward:
        bests = bests | {"delta": milliseconds(lambda: _delta(problem, q, dout, None))}
        row |= {"delta_ms": bests["delta"], "dq_ms": bests["query gradient"], "dkv_ms": bests["key gradient"]}
    share = 2.5 if backward else 1.0
    row["ours_TF"] = share * flops / sum(bests.values())
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    for name, backend in (("flash2", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        try:
            with sdpa_kernel(backend):
                out = functional.scaled_dot_product_attention(*leaves, is_causal=causal)
                if backward:
                    call = lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)
                else:
                    call = lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
                row[f"{name}_TF"] = share * flops / milliseconds(call)
                row[f"over_{name}"] = row["ours_TF"] / row[f"{name}_TF"]
        except RuntimeError as error:
            row[name] = str(error)[:60]
    report(**row)


def attention() -> None:
    """Forward, bf16."""
    time_passes(("forward",))


def attention_backward_part() -> None:
    """Backward, bf16."""
    time_passes(("query gradient", "key gradient"))


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The seeds' attention."""
    scores = torch.einsum("bqd,bkd->bqk", q, k) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v


def fp32() -> None:
    """The seeds' shapes: batch 8, one head, fp32; full accuracy and tf32; beside eager and torch.compile."""
    phases = ("forward", "query gradient", "key gradient")
    ways = {"split": ("tf32x3", "bf16x6"), "halves": ("halves",), "tf32": ("tf32",), "high": ("high",)}
    jobs = [
        (p, "float32", d, False, t, precision)
        for p in phases for d in (64, 128) for numerics, precisions in ways.items() for precision in precisions
        for t in candidates(p, numerics, d)
    ]  # fmt: skip
    broken = {job: why for job, why in zip(jobs, in_parallel(compile_pass, jobs)) if why}
    for job, why in broken.items():
        report(broken=str(job), why=why)
    for d in (64, 128):
        for s in (1024, 4096, 16384):
            tensors = [torch.randn(8, 1, s, d, device="cuda") for _ in range(4)]
            exact = fp32_accuracy(tensors) if s == 1024 else {}
            for numerics, precisions in ways.items():
                for phase in phases:
                    timed = {}
                    for precision in precisions:
                        for tile in candidates(phase, numerics, d):
                            if (phase, "float32", d, False, tile, precision) not in broken:
                                call = pass_call(phase, tensors, False, tile, precision)
                                timed[f"{tile} {precision}"] = milliseconds(call, 20)
                    ranked = sorted(timed.items(), key=lambda item: item[1])
                    report(
                        phase=phase, numerics=numerics, d=d, s=s, best=ranked[0][0], ms=ranked[0][1],
                        all=" | ".join(f"{tile}: {ms:.3g}" for tile, ms in ranked),
                    )  # fmt: skip
            fp32_rivals(tensors, d, s, exact)


def fp32_accuracy(tensors: list[torch.Tensor]) -> dict[str, float]:
    """Error of the output against fp64 by way of forming products, and eager's."""
    q, k, v = tensors[:3]
    wanted = written_out(*(t[:, 0].double() for t in (q, k, v)))
    found = {"eager_error": (written_out(*(t[:, 0] for t in (q, k, v))).double() - wanted).abs().max().item()}
    for precision in ("tf32x3", "bf16x6", "halves", "tf32", "high"):
        out = attention_forward(q, k, v, precision=precision)[0][:, 0]
        found[f"{precision}_error"] = (out.double() - wanted).abs().max().item()
    return found


def fp32_rivals(tensors: list[torch.Tensor], d: int, s: int, exact: dict[str, float]) -> None:
    """Eager, torch.compile and our default, forward and backward, at both settings of tf32."""
    leaves = [t[:, 0].detach().requires_grad_() for t in tensors[:3]]
    dout = tensors[3][:, 0]
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch._dynamo.reset()
        row: dict[str, Any] = {"row": "seed", "tf32": tf32, "d": d, "s": s}
        for name, f in (
            ("eager", written_out),
            ("compile", torch.compile(written_out)),
            ("ours", differentiable_attention),
        ):
            with torch.no_grad():
                row[f"{name}_fwd"] = milliseconds(lambda: f(*leaves), 20)
            out = f(*leaves)
            row[f"{name}_bwd"] = milliseconds(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True), 20)
        report(**row, **(exact if not tf32 else {}))
    torch.backends.cuda.matmul.allow_tf32 = False


def decode() -> None:
    """One query: bandwidth over the bytes of keys and values, by number of splits."""
    for batch, heads, kv_heads, keys, d in (
        (1, 32, 8, 4096, 128), (32, 32, 8, 4096, 128), (1, 32, 8, 65536, 128), (8, 64, 8, 16384, 128),
        (16, 16, 16, 8192, 64), (1, 8, 1, 32768, 128), (64, 32, 8, 2048, 128),
    ):  # fmt: skip
        q = torch.randn(batch, heads, 1, d, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(batch, kv_heads, keys, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        own = choose_splits(batch * kv_heads, keys, 64, processors)
        timed = {}
        for splits in sorted({1, 2, 4, 8, 16, 32, own}):
            for tile in ("16x64 w4 s3", "16x128 w4 s3", "16x32 w4 s4"):
                call = lambda: flash_decode(q, k, v, splits=splits, config=attention_tile(tile))
                timed[f"{splits}/{tile}"] = milliseconds(call, 15)
        ranked = sorted(timed.items(), key=lambda item: item[1])
        rival = milliseconds(lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True), 15)
        terabytes = (k.nbytes + v.nbytes) / 1e9
        report(
            batch=batch, heads=heads, kv_heads=kv_heads, keys=keys, d=d, chosen=own, us=ranked[0][1] * 1e3,
            TBps=terabytes / ranked[0][1], sdpa_TBps=terabytes / rival,
            all=" | ".join(f"{name}: {terabytes / ms:.2f}" for name, ms in ranked[:6]),
        )  # fmt: skip


# ---------------------------------------------------------------- matmul speed

SHAPES: tuple[tuple[int, int, int], ...] = (
    (512, 512, 512), (1024, 1024, 1024), (1536, 1536, 1536), (2048, 2048, 2048), (3072, 3072, 3072), (4096, 4096, 4096),
    (6144, 6144, 6144), (8192, 8192, 8192), (2048, 2304, 768), (2048, 768, 768), (2048, 3072, 768), (2048, 768, 3072),
    (2048, 10000, 768), (768, 2304, 2048), (768, 3072, 2048), (3072, 768, 2048), (768, 10000, 2048), (2048, 1024, 1024),
    (2048, 3072, 1024), (2048, 4096, 1024), (2048, 1024, 4096), (2048, 10000, 1024), (1024, 4096, 2048),
    (4096, 1024, 2048), (16384, 2048, 2048), (16384, 8192, 2048), (16384, 2048, 8192), (65536, 1024, 1024),
    (4096, 4096, 512), (4096, 4096, 16384), (512, 512, 16384), (256, 256, 65536), (128, 128, 32768),
    (1, 4096, 4096), (1, 8192, 8192), (1, 11008, 4096), (4, 4096, 4096), (8, 8192, 8192), (16, 4096, 4096),
    (16, 8192, 8192), (16, 50257, 4096), (32, 4096, 4096), (32, 8192, 8192), (64, 4096, 4096), (64, 11008, 4096),
    (64, 8192, 8192), (128, 4096, 4096), (128, 8192, 8192), (256, 4096, 4096), (512, 4096, 4096), (4095, 4095, 4095),
    (4097, 4097, 4097), (2048, 50257, 768), (2048, 50264, 768), (50257, 768, 2048), (1000, 1000, 1000), (777, 1333, 2049),
    (2047, 4096, 4096), (4096, 4095, 4096), (4096, 4096, 4095), (8192, 128, 8192), (8192, 8192, 128), (300, 500, 700),
)  # fmt: skip
MORE_TILES = (
    MatmulConfig(128, 256, 64, 8, 3, tma=True, halves=True), MatmulConfig(128, 256, 64, 8, 4, tma=True, halves=True),
    MatmulConfig(128, 256, 64, 8, 3, tma=True), MatmulConfig(256, 128, 64, 8, 3, tma=True, halves=True),
    MatmulConfig(128, 128, 64, 8, 4, tma=True), MatmulConfig(128, 128, 64, 4, 4, tma=True),
    MatmulConfig(128, 128, 128, 8, 3, tma=True),
)  # fmt: skip


def matmul_operands(shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A row-major, B a weight: (N, K) transposed, as `linear` has it."""
    m, n, k = shape
    return (
        torch.randn(m, k, device="cuda", dtype=torch.bfloat16),
        torch.randn(n, k, device="cuda", dtype=torch.bfloat16).t(),
    )


def problem_of(shape: tuple[int, int, int]) -> MatmulProblem:
    """What the model is told of a bf16 product."""
    m, n, k = shape
    return MatmulProblem(1, m, n, k, 2, False, "ieee", k % 8 == 0, by_vectors=k % 16 == 0)


def tiles_of(shape: tuple[int, int, int]) -> list[MatmulConfig]:
    """Tiles to time for a shape: the model's best five and the large ones."""
    ranked = [config for config, _ in rank_configs(problem_of(shape), 24)]
    tiles = ranked[:5]
    if shape[0] <= 64:
        tiles += [config for config in ranked[5:] if config.swapped][:6]
    if min(shape[:2]) >= 512 and shape[2] % 8 == 0:
        tiles += MORE_TILES
    return list(dict.fromkeys(tiles))


def compile_matmuls(shape: tuple[int, int, int]) -> list[str]:
    """Fill Triton's cache for one shape and check the values of every tile."""
    a, b = matmul_operands(shape)
    wanted = a.double() @ b.double() if shape[0] * shape[1] * shape[2] < 2**34 else (a @ b).double()
    wrong = []
    for config in tiles_of(shape):
        try:
            error = ((matmul(a, b, config=config).double() - wanted).abs().max() / wanted.abs().max()).item()
            if not error < 1e-2:
                wrong.append(f"{config}: error {error:.2g}")
        except Exception as problem:
            wrong.append(f"{config}: {type(problem).__name__} {str(problem)[:90]}")
    return wrong


def matmul_part(shapes: tuple[tuple[int, int, int], ...] = SHAPES) -> None:
    """Every tile against cuBLAS, bf16, and what the model would choose."""
    for shape, wrong in zip(shapes, in_parallel(compile_matmuls, shapes)):
        for line in wrong:
            report(shape=shape, wrong=line)
    ratios = []
    for shape in shapes:
        a, b = matmul_operands(shape)
        flops = 2 * math.prod(shape) / 1e9
        vendor = milliseconds(lambda: a @ b, 15)
        timed: dict[str, float] = {}
        for config in tiles_of(shape):
            try:
                timed[str(config)] = milliseconds(lambda: matmul(a, b, config=config), 15)
            except Exception:
                continue
        ranked = sorted(timed.items(), key=lambda item: item[1])
        tile, _ = choose(problem_of(shape))
        padded = milliseconds(lambda: padded_matmul(a, b), 15) if shape[2] % 8 else math.nan
        chosen = vendor if tile is None else timed.get(str(tile), math.inf)
        ratios.append(vendor / chosen)
        report(
            shape=shape, cublas_TF=flops / vendor, best_TF=flops / ranked[0][1], ratio=vendor / ranked[0][1],
            best=ranked[0][0], model_tile=str(tile), auto_ratio=vendor / chosen,
            padded_TF=flops / padded,
            all=" | ".join(f"{tile}: {flops / ms:.0f}" for tile, ms in ranked),
        )  # fmt: skip
    report(geometric_mean=math.exp(sum(map(math.log, ratios)) / len(ratios)), least=min(ratios))


def padded_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b by the vendor's library, on copies of the operands, so that rows of all three are multiples of 16 bytes."""
    n = b.shape[-1]
    step = 16 // a.element_size()
    k_pad, n_pad = -a.shape[-1] % step, -n % step
    pad = torch.nn.functional.pad
    by_rows = b.stride(-1) == 1
    wide = pad(b, (0, n_pad, 0, k_pad)) if by_rows else pad(b.transpose(-1, -2), (0, k_pad, 0, n_pad)).transpose(-1, -2)
    return (pad(a, (0, k_pad)) @ wide)[..., :n]


@triton.jit
def gelu_tanh(values, batch, rows, cols, in_range, extra):
    """The tanh form of gelu, as an epilogue."""
    inner = 0.7978845608028654 * (values + 0.044715 * values * values * values)
    return values / (1.0 + tl.exp(-2.0 * inner))


def matmul_alone() -> None:
    """The other numerics at two sizes, and an epilogue, beside PyTorch."""
    for n in (2048, 4096):
        for name, precision in (("fp32", "ieee"), ("tf32", "tf32"), ("fp32", "tf32x3"), ("fp32", "bf16x6")):
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            a, b = torch.randn(n, n, device="cuda"), torch.randn(n, n, device="cuda")
            wanted = a.double() @ b.double()
            error = ((matmul(a, b, precision=precision).double() - wanted).abs().max() / wanted.abs().max()).item()
            rival_error = ((a @ b).double() - wanted).abs().max() / wanted.abs().max()
            ours, theirs = milliseconds(lambda: matmul(a, b, precision=precision)), milliseconds(lambda: a @ b)
            report(n=n, precision=precision, ours_TF=2 * n**3 / ours / 1e9, vendor_TF=2 * n**3 / theirs / 1e9,
                   error=error, vendor_error=rival_error.item())  # fmt: skip
        a, b = (torch.randint(-128, 127, (n, n), device="cuda", dtype=torch.int8) for _ in range(2))
        exact = torch.equal(matmul(a, b.t()).long(), (a.double() @ b.double().t()).long())
        ours, theirs = milliseconds(lambda: matmul(a, b.t())), milliseconds(lambda: torch._int_mm(a, b.t()))
        report(n=n, precision="int8", exact=exact, ours_TF=2 * n**3 / ours / 1e9, vendor_TF=2 * n**3 / theirs / 1e9)
        a, b = matmul_operands((n, n, n))
        bias = torch.randn(n, device="cuda", dtype=torch.bfloat16)
        ours = milliseconds(lambda: matmul(a, b, bias, epilogue=gelu_tanh))
        theirs = milliseconds(lambda: functional.gelu(functional.linear(a, b.t(), bias), approximate="tanh"))
        report(n=n, epilogue="bias, gelu", ours_ms=ours, eager_ms=theirs)


def matmul_graphs() -> None:
    """The shapes of a language model without the host's share in the time: decides `DESCRIPTOR_SECONDS` and TMA rows."""
    shapes = tuple(shape for shape in SHAPES if 2**28 < math.prod(shape) < 2**36)[:34]
    in_parallel(compile_matmuls, shapes)
    for shape in timely(shapes):
        a, b = matmul_operands(shape)
        flops = 2 * math.prod(shape) / 1e9
        vendor = graphed_milliseconds(lambda: a @ b, "cuda")
        timed: dict[str, float] = {}
        for config in tiles_of(shape):
            try:
                timed[str(config)] = graphed_milliseconds(lambda: matmul(a, b, config=config), "cuda")
            except Exception as error:
                report(shape=shape, tile=str(config), failed=str(error)[:90])
        ranked = sorted(timed.items(), key=lambda item: item[1])
        report(
            shape=shape, cublas_us=vendor * 1e3, cublas_TF=flops / vendor, best_TF=flops / ranked[0][1],
            ratio=vendor / ranked[0][1], best=ranked[0][0], model=str(choose(problem_of(shape))[0]),
            all=" | ".join(f"{tile}: {flops / ms:.0f}" for tile, ms in ranked),
        )  # fmt: skip


def epilogues() -> None:
    """A product and what follows it, compiled with the vendor's product, with ours, and by the model's choice."""
    shapes = ((2048, 3072, 768), (2048, 768, 3072), (2048, 768, 768), (2048, 4096, 1024), (8192, 4096, 1024),
              (16384, 8192, 2048), (4096, 14336, 4096), (16, 11008, 4096))  # fmt: skip
    ratios: list[float] = []
    half, full = ((torch.bfloat16, shape) for shape in shapes), ((torch.float32, shape) for shape in shapes[:6:2])
    for dtype, (m, n, k) in timely([*half, *full]):
        given = [torch.randn(*size, device="cuda", dtype=dtype) / scale for size, scale in (
            ((m, k), 1), ((n, k), k**0.5), ((n,), 1), ((m, n), 1), ((n, k), k**0.5))]  # fmt: skip
        for name, function in FOLLOWED.items():
            row: dict[str, Any] = {"dtype": str(dtype)[6:], "shape": (m, n, k), "epilogue": name}
            wanted = function(*(t.double() for t in given)) if m * n * k < 2**35 else None
            for setting in ("aten", "triton", "auto"):
                try:
                    call = minicompile.compile(function, options={"matmul": setting, "suppress_errors": False})
                    outputs = [call(*given) for _ in range(3)]
                    torch.cuda.synchronize()
                    if not all(torch.equal(outputs[0], other) for other in outputs[1:]):
                        row[f"{setting}_differs"] = "two calls gave other bits"
                    if wanted is not None:
                        row[f"{setting}_error"] = ((outputs[2].double() - wanted).abs().max() / wanted.abs().max()).item()
                    row[f"{setting}_us"] = graphed_milliseconds(lambda: call(*given), "cuda") * 1e3
                    row[f"{setting}_host_us"] = host_microseconds(lambda: call(*given))
                except Exception as error:
                    row[setting] = f"{type(error).__name__}: {str(error)[:160]}"
            if "auto_us" in row and "aten_us" in row:
                row["ours"] = row["aten_us"] / row.get("triton_us", math.inf)
                row["auto"] = row["aten_us"] / row["auto_us"]
                ratios.append(row["auto"])
            report(**row)
    report(geometric_mean=math.exp(sum(map(math.log, ratios)) / len(ratios)), least=min(ratios))


def cross_entropy() -> None:
    """The loss of a linear head, forward and backward: in one piece as compiled before, in chunks, and torch.compile's."""

    def head(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional.linear(x, w).float(), t)

    for rows, width, columns in timely(((8192, 768, 50257), (8192, 2048, 50257), (16384, 2048, 50304), (8192, 4096, 128256))):
        x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        w = (torch.randn(columns, width, device="cuda", dtype=torch.bfloat16) / width**0.5).requires_grad_()
        t = torch.randint(0, columns, (rows,), device="cuda")
        row: dict[str, Any] = {"rows": rows, "width": width, "columns": columns}
        exact = torch.autograd.grad(head(x.float(), w.float(), t), (x, w)) if columns < 60000 else None
        kept = recognition.LEAST_BYTES
        for name, least in (("eager", kept), ("torch", kept), ("whole", 2**60), ("chunks", 0)):
            recognition.LEAST_BYTES = least
            options = {"suppress_errors": False, "cache": False}
            call = {"eager": lambda: head, "torch": lambda: torch.compile(head)}.get(
                name, lambda: minicompile.compile(head, options=options))()
            try:
                step = lambda: torch.autograd.grad(call(x, w, t), (x, w))
                found = step()
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                step()
                torch.cuda.synchronize()
                row[f"{name}_GB"] = (torch.cuda.max_memory_allocated() - before) / 1e9
                row[f"{name}_ms"] = milliseconds(step)
                if exact is not None:
                    row[f"{name}_error"] = max(((a.float() - b).norm() / b.norm()).item() for a, b in zip(found, exact))
            except Exception as error:
                row[name] = f"{type(error).__name__}: {str(error)[:160]}"
        recognition.LEAST_BYTES = kept
        report(**row)


def masks() -> None:
    """A causal mask in memory beside the causal flag: what looking through it beforehand costs and saves."""
    for d, s in timely([(d, s) for d in (64, 128) for s in (256, 512, 1024, 4096, 8192)]):
        q, k, v, dout = (torch.randn(max(1, 8192 // s), 16, s, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        mask = torch.ones(s, s, dtype=torch.bool, device="cuda").tril()
        row: dict[str, Any] = {"d": d, "s": s}
        results = {}
        for name, given, upper, bounded in (("flag", None, 0, True), ("mask", mask, None, True), ("mask_unread", mask, None, False)):
            with mock.patch.object(AttentionProblem, "is_bounded", lambda self, m: bounded and m is not None):
                forward = lambda: attention_forward(q, k, v, given, upper=upper)
                out, lse = forward()
                backward = lambda: attention_backward(dout, q, k, v, out, lse, given, upper=upper)
                results[name] = (out, *backward()[:3])
                row |= {f"{name}_fwd": graphed_milliseconds(forward, "cuda", 5), f"{name}_bwd": graphed_milliseconds(backward, "cuda", 5)}
        row["equal"] = all(torch.allclose(a, b, atol=2e-2) for a, b in zip(results["flag"], results["mask"]))
        report(**row)


def host_microseconds(call: Callable[[], object], calls: int = 50) -> float:
    """Host time of one call, the GPU not waited for."""
    began = time.perf_counter()
    for _ in range(calls):
        call()
    taken = time.perf_counter() - began
    torch.cuda.synchronize()
    return taken / calls * 1e6


PARTS = {
    "correctness": correctness, "diagnose": diagnose, "large": large, "attention": attention, "attention_backward": attention_backward_part,
    "fp32": fp32, "decode": decode, "matmul": matmul_part, "matmul_alone": matmul_alone,
    "matmul_graphs": matmul_graphs, "epilogues": epilogues, "cross_entropy": cross_entropy, "masks": masks,
}  # fmt: skip


def main(names: list[str]) -> None:
    """Run the named parts."""
    print(torch.__version__, torch.cuda.get_device_name(), flush=True)
    for name in names:
        began = time.time()
        ROWS.clear()
        try:
            PARTS[name]()
        except Exception:
            report(failed=name, why=traceback.format_exc(limit=-4))
        print(f"-- {name}: {time.time() - began:.0f} s", flush=True)
        if os.environ.get("OUT"):
            (Path(os.environ["OUT"]) / f"kernels_{name}.json").write_text(json.dumps(ROWS, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:] or list(PARTS))
