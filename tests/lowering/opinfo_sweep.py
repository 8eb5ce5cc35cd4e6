"""Every operator of PyTorch's own test database: lowered, evaluated and compared with eager.

`python -m tests.lowering.opinfo_sweep [--ops add softmax ...] [--dtypes float32 ...] [--samples 6] [--verbose] [--primitives]` prints for
each operator whether its loops are fused, partly extern, extern, not lowered (eager runs it), or wrong. None may be wrong.
"""

from __future__ import annotations

import argparse
import collections
import signal
import sys
import warnings
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from minicompile.errors import Unsupported
from minicompile.graph.decompositions import decomposition_table
from minicompile.ir.loops import ExternKernel, Loop
from tests.lowering import oracle
from tests.lowering.oracle import compare, evaluate_graph, lower, tensors_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int64": torch.int64, "bool": torch.bool}
RANDOM = ("rand", "bernoulli", "multinomial", "dropout", "normal", "uniform", "exponential", "geometric", "cauchy",
          "empty", "new_empty", "rrelu", "scaled_dot_product", "poisson", "fractional", "multi_head", "binomial", "resize_")  # fmt: skip
SECONDS = 20


class TookTooLong(Exception):
    """One operator used up its time."""


def outcome(info: OpInfo, dtype: torch.dtype, samples: int) -> tuple[str, str]:
    """(verdict, detail) of one operator and dtype."""
    loops = calls = 0
    reasons: set[str] = set()
    for number, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=False)):
        if number >= samples:
            break
        args = (sample.input, *sample.args)
        kwargs = sample.kwargs
        try:
            expected = tensors_of(info.op(*args, **kwargs))
        except Exception:
            continue
        try:
            graph = lower(lambda a, k: info.op(*a, **k), (args, kwargs))
        except Unsupported as refusal:
            reasons.add(refusal.reason)
            continue
        except Exception as failure:
            if type(failure).__module__.startswith("torch") or "data-dependent" in str(failure) or not _ours(failure):
                reasons.add(f"not traced: {type(failure).__name__}")
                continue
            return "WRONG", f"sample {number}: {type(failure).__name__}: {failure}"
        loops += sum(isinstance(o, Loop) for o in graph.operations)
        called = [o for o in graph.operations if isinstance(o, ExternKernel) and "empty_strided" not in o.target]
        calls += len(called)
        reasons.update(f"{o.target.removeprefix('torch.ops.')}: {o.reason}" for o in called)
        try:
            found = evaluate_graph(graph, tensors_of((args, kwargs)))
            if info.name.startswith(RANDOM) or any(part in info.name for part in RANDOM):
                continue
            for ours, eager in zip(found, expected, strict=True):
                compare(ours, eager.resolve_conj().resolve_neg(), slack=20.0)
        except Exception as failure:
            return "WRONG", f"sample {number}: {str(failure)[:600]}"
    verdict = "fused" if loops and not calls else "mixed" if loops else "extern" if calls else "views or eager"
    return verdict, "; ".join(sorted(reasons))


def _ours(failure: BaseException) -> bool:
    """Whether the failure comes out of the compiler, not out of tracing."""
    frame, found = failure.__traceback__, False
    while frame is not None:
        found = "minicompile" in frame.tb_frame.f_code.co_filename
        if found:
            return True
        frame = frame.tb_next
    return False


def sweep(names: list[str], dtypes: list[str], samples: int, verbose: bool) -> int:
    """Print the table; return how many are wrong."""
    counts: collections.Counter[str] = collections.Counter()

    def too_long(*_: Any) -> None:
        raise TookTooLong

    signal.signal(signal.SIGALRM, too_long)
    for info in op_db:
        if names and info.name not in names:
            continue
        for name in dtypes:
            if DTYPES[name] not in info.dtypes:
                continue
            label = f"{info.name}{'.' + info.variant_test_name if info.variant_test_name else ''}"
            try:
                signal.alarm(SECONDS)
                verdict, detail = outcome(info, DTYPES[name], samples)
            except TookTooLong:
                verdict, detail = "slow", ""
            except Exception as failure:
                verdict, detail = "no samples", f"{type(failure).__name__}: {failure}"
            finally:
                signal.alarm(0)
            counts[verdict] += 1
            if verbose or verdict == "WRONG" or verdict == "no samples":
                print(f"{label:<50} {name:<9} {verdict:<15} {detail[:700]}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    return counts["WRONG"]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", nargs="*", default=[])
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--primitives", action="store_true", help="decompose as the graph stage does")
    given = parser.parse_args()
    if given.primitives:
        oracle.TABLE.clear()
        oracle.TABLE.update(decomposition_table())
    warnings.simplefilter("ignore")
    return min(sweep(given.ops, given.dtypes, given.samples, given.verbose), 1)


if __name__ == "__main__":
    sys.exit(main())
