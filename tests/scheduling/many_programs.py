"""Random loop programs: evaluated as they are, after scheduling, and as generated kernels under the interpreter.

    python -m tests.scheduling.many_programs 10000 [first seed]

prints the seeds of programs that differ. The suite runs a few hundred.
"""

from __future__ import annotations

import shutil
import sys
import time

import numpy as np
import pytest
import torch

from minicompile.codegen.generate import generate_program
from minicompile.config import Config
from minicompile.ir.loops import LoweredGraph
from minicompile.ir.schedule import DeviceProperties, Schedule
from minicompile.scheduling import split, tiling
from minicompile.scheduling.schedule import schedule_graph
from tests.codegen.build import load
from tests.evaluate import evaluate_graph
from tests.scheduling.evaluator import run_graph, run_schedule, storage_size
from tests.scheduling.loop_programs import ProgramMaker

GPU = DeviceProperties(name="H200", kind="cuda")
VERIFIED = Config(verify=True)


def check_program(seed: int, length: int, device: DeviceProperties = GPU, kernels: bool = False) -> Schedule:
    """Compare one random program before and after scheduling, which it returns; with `kernels` the generated ones too."""
    maker = ProgramMaker(seed, length)
    graph = maker.graph()
    generator = np.random.default_rng(seed)
    inputs = {name: generator.standard_normal(storage_size(graph, name)) for name in maker.inputs}
    expected = run_graph(graph, inputs)
    schedule = schedule_graph(graph, VERIFIED, device)
    found = run_schedule(schedule, inputs)
    for want, have in zip(expected, found, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6, atol=1e-6, err_msg=f"seed {seed}")
    if kernels:
        check_kernels(seed, graph, schedule, inputs, device)
    return schedule


def check_kernels(
    seed: int, graph: LoweredGraph, schedule: Schedule, inputs: dict[str, np.ndarray], device: DeviceProperties
) -> None:
    """Compare the generated program with the oracle, both on fp32 tensors."""

    def tensors() -> list[torch.Tensor]:
        made = []
        for name in graph.inputs:
            buffer = graph.buffers[name]
            flat = torch.tensor(inputs[name], dtype=torch.float32)
            made.append(flat.as_strided([int(n) for n in buffer.sizes], [int(s) for s in buffer.strides]))
        return made

    expected = evaluate_graph(graph, tensors())
    module = load(generate_program(schedule, VERIFIED, device))
    try:
        found = module.call(tensors())
    finally:
        shutil.rmtree(module.__file__.rpartition("/")[0])
        del sys.modules[module.__name__]
    # What cancels leaves the rounding errors of the largest values around.
    scale = max(float(want.double().abs().nan_to_num(0, 0, 0).max()) for want in expected if want.numel())
    for want, have in zip(expected, found, strict=True):
        torch.testing.assert_close(have, want, rtol=2e-2, atol=1e-2 * max(1.0, scale), equal_nan=True, msg=f"seed {seed}")


def main() -> None:
    """Check as many programs as asked for, under every policy in turn."""
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    wrong, start = [], time.time()
    for number in range(count):
        seed = first + number
        with pytest.MonkeyPatch.context() as patch:
            if seed % 4 == 1:
                patch.setattr(tiling, "ROW_REGISTERS", 0)
            if seed % 4 == 2:
                patch.setattr(split, "choose_splits", lambda results, length, *rest, s=2 + seed % 3: s if length >= s else 1)
            if seed % 4 == 3:
                patch.setattr(split, "choose_row_chunks", lambda rows, *rest, c=2 + seed % 2: 1 if rows % c else rows // c)
            try:
                check_program(seed, 4 + seed % 20, kernels=True)
            except Exception as failure:
                wrong.append(seed)
                print(f"seed {seed}: {type(failure).__name__}: {str(failure)[:200]}", flush=True)
        if number % 100 == 99:
            print(f"{number + 1} programs, {len(wrong)} wrong, {time.time() - start:.0f} s", flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
