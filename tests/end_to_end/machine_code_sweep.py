"""Every kernel that PyTorch's OpInfo database gives rise to, planned for a GPU and compiled to PTX on a machine without one.

    python -m tests.end_to_end.machine_code_sweep [--ops add,softmax] [--dtypes fp32,int64] [--samples 1] [--slice 0/8]

The interpreter forgives what Triton's compiler does not: types that do not agree, a value of two shapes in a branch,
layouts that no pass can convert. Prints what does not compile, and how many kernels there were.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from typing import Any
from unittest import mock

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend

from minicompile.codegen.generate import generate_program
from minicompile.compiler import Compiler, matmul_chooser
from minicompile.ir.program import KernelSource, Program
from minicompile.ir.schedule import DeviceProperties
from minicompile.runtime.kernel_binary import compile_job
from minicompile.runtime.kernel_worker import OPTIONS, Job, kernels_of, triton_source
from minicompile.scheduling.schedule import schedule_graph
from tests.end_to_end.operator_verdict import DTYPES, full_name, judge

GPU = DeviceProperties(name="NVIDIA H200", kind="cuda")
TARGET = GPUTarget("cuda", 90, 32)


class MachineCodeSweep:
    """Watches compilations on the CPU, and compiles the same loops as they would be for a GPU.

    Attributes:
        kernels: how many different ones were compiled.
        failures: the operator, the kernel and the error of each that did not.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.failures: list[str] = []
        self.operator = ""
        self._folder = folder
        self._seen: set[str] = set()

    @property
    def kernels(self) -> int:
        return len(self._seen)

    def watched(self, run_stages: Any) -> Any:
        """`Compiler._run_stages` with a second look at what it lowered."""

        def run(compiler: Compiler, *arguments: Any) -> Any:
            part = run_stages(compiler, *arguments)
            try:
                schedule = schedule_graph(part.lowered, compiler.config, GPU, matmul_chooser(compiler.config, GPU))
                self.compile(generate_program(schedule, compiler.config, GPU))
            except Exception as error:
                self.failures.append(f"{self.operator}: {type(error).__name__}: {str(error)[-300:]}")
            return part

        return run

    def compile(self, program: Program) -> None:
        """Compile what no earlier program had."""
        fresh = {key: kernel for kernel in program.kernels if (key := fingerprint(kernel)) not in self._seen}
        self._seen.update(fresh)
        path = self._folder / f"{program.key}.py"
        path.write_text(program.text)
        for kernel in fresh.values():
            compile_to_ptx(compile_job(kernel, kernels_of(str(path))[kernel.name], TARGET, str(path)))


def fingerprint(kernel: KernelSource) -> str:
    """What two kernels have in common that compile alike."""
    text = kernel.text.replace(kernel.name, "kernel")
    plan = (text, kernel.arguments, kernel.constants, kernel.num_warps, kernel.num_stages)
    return hashlib.sha256(repr(plan).encode()).hexdigest()


def compile_to_ptx(job: Job) -> str:
    """Triton's stages as far as PTX: what is left is ptxas, which takes as long as all of them."""
    from triton._C.libtriton import ir

    source, backend, context = triton_source(job, kernels_of(job.path)[job.name]), make_backend(TARGET), ir.context()
    asked = {"num_warps": job.num_warps, "num_stages": job.num_stages, **OPTIONS}
    settings, stages = backend.parse_options(asked), {}
    backend.add_stages(stages, settings, source.language)
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(settings), backend.get_module_map()
    code, metadata = source.make_ir(TARGET, settings, functions, modules, context), {"target": TARGET, **vars(settings)}
    for name, stage in stages.items():
        if name != "cubin":
            code = stage(code, metadata)
    return code


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="", help="names, with commas; all by default")
    parser.add_argument("--dtypes", default="fp32,bf16,int64,bool")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=30, help="time limit for one operator and dtype")
    parser.add_argument("--slice", default="0/1", help="every n-th operator")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    part, parts = map(int, given.slice.split("/"))
    names = [name for name in given.ops.split(",") if name]
    chosen = [op for op in op_db if not names or op.name in names][part::parts]
    sweep = swept(chosen, given.dtypes.split(","), given.samples, given.seconds)
    print(*sweep.failures, f"{sweep.kernels} kernels compiled, {len(sweep.failures)} failures", sep="\n")
    return 1 if sweep.failures or not sweep.kernels else 0


def swept(operators: Iterable[OpInfo], dtypes: Sequence[str], samples: int, seconds: int) -> MachineCodeSweep:
    """Compile what the samples of operators need, forward and backward."""
    with tempfile.TemporaryDirectory() as folder:
        sweep = MachineCodeSweep(pathlib.Path(folder))
        with mock.patch.object(Compiler, "_run_stages", sweep.watched(Compiler._run_stages)):
            for op in operators:
                for dtype in dtypes:
                    if DTYPES[dtype] in op.supported_dtypes("cpu"):
                        sweep.operator = f"{full_name(op)} {dtype}"
                        judge(op, dtype, samples, seconds)
    return sweep


if __name__ == "__main__":
    sys.exit(main())
