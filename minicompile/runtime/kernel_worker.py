"""Compiles Triton kernels: a function for this process, and a program for others, `python kernel_worker.py`.

The program reads jobs from its standard input and writes machine code to its standard output. It imports Triton, but neither
torch nor this library, and so starts in a fraction of a second. It ends when its input does, at once, or when there was no job
for a minute. This module must import nothing but the standard library at its top.

Private interfaces used: what `triton.compile` of 3.6 to 3.9 calls between source and machine code.
"""

import __future__

import ast
import contextlib
import functools
import importlib.util
import os
import pathlib
import pickle
import queue
import sys
import threading
from typing import Any, NamedTuple

IDLE_SECONDS = 60.0
MOST_WARPS = 32
WANTED = ("@triton.jit", "import triton", "from triton")  # how the statements of a file begin that kernels need
OPTIONS = {
    "enable_fp_fusion": False,  # products are rounded before anything is added to them, as in eager
    "enable_reflect_ftz": False,  # functions keep numbers below the smallest normal one, as in eager
    "debug": True, "sanitize_overflow": False,  # the kernel's own assertions, and no others
}  # fmt: skip
KEPT = ("name", "shared", "num_warps", "global_scratch_size")


class Job(NamedTuple):
    """One kernel to compile.

    Attributes:
        path: a file of Python that defines it.
        name: the `@triton.jit` function.
        target: backend, architecture, threads in a warp.
        signature: Triton type by parameter, in order; `constexpr` for a constant.
        constants: value by the position of a parameter.
        aligned: positions of parameters that are multiples of 16.
        num_warps, num_stages: launch options.
    """

    path: str
    name: str
    target: tuple[Any, ...]
    signature: dict[str, str]
    constants: dict[int, Any]
    aligned: tuple[int, ...]
    num_warps: int
    num_stages: int


class LibraryJob(NamedTuple):
    """One launch of a hand-written kernel, to be compiled into Triton's own folder, where the asking process finds it.

    Attributes:
        path: the file of the library that defines the kernel; name: its function.
        target: backend, architecture, threads in a warp.
        signature, constants, attributes, options: as Triton takes them from a launch.
        triton_key: Triton's hash of its own files; folder: where it keeps what it compiled.
    """

    path: str
    name: str
    target: tuple[Any, ...]
    signature: dict[str, Any]
    constants: dict[Any, Any]
    attributes: dict[Any, Any]
    options: dict[str, Any]
    triton_key: str
    folder: str


class Machine(NamedTuple):
    """Machine code, and what `KEPT` names of its metadata."""

    code: bytes
    metadata: dict[str, Any]


def compiled(job: Job, function: Any) -> Machine:
    """The machine code of a kernel, with other numbers of warps where Triton fails on the one asked for.

    Triton 3.6 moves some layout conversions behind their uses ("operand does not dominate this use") when a program is one
    warp, and ptxas may run out of registers; both depend on the number of warps.
    """
    failure: Exception | None = None
    for warps in dict.fromkeys((job.num_warps, 2 * job.num_warps, 4 * job.num_warps, 4)):
        if warps > MOST_WARPS:
            continue
        try:
            return compiled_with(job, function, warps)
        except Exception as error:  # Triton's passes raise RuntimeError, ptxas a class of its own
            failure = failure or error
    assert failure is not None
    raise failure


def compiled_with(job: Job, function: Any, num_warps: int) -> Machine:
    """What `triton.compile` does, without its folder of intermediate results, whose key is a hash of all of Triton (0.4 s)."""
    # Here because a worker learns only from its first message where Triton lies.
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    source, target = triton_source(job, function), GPUTarget(*job.target)
    backend, context = make_backend(target), ir.context()
    settings = backend.parse_options({"num_warps": num_warps, "num_stages": job.num_stages, **OPTIONS})
    stages: dict[str, Any] = {}
    backend.add_stages(stages, settings, source.language)
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(settings), backend.get_module_map()
    code, metadata = source.make_ir(target, settings, functions, modules, context), {"target": target, **vars(settings)}
    for stage in stages.values():
        code = stage(code, metadata)
    return Machine(bytes(code), {name: metadata.get(name) for name in KEPT})


def triton_source(job: Job, function: Any) -> Any:
    """What Triton compiles: the function with its signature, constants and alignment facts."""
    # Here because a worker learns only from its first message where Triton lies.
    from triton.compiler import ASTSource

    return ASTSource(
        fn=function, signature=job.signature, constexprs={(at,): value for at, value in job.constants.items()},
        attrs={(at,): [["tt.divisibility", 16]] for at in job.aligned},
    )  # fmt: skip


def filed(job: LibraryJob) -> None:
    """Compile a hand-written kernel as its launch would."""
    import triton  # here, and below, because a worker learns only from its first message where Triton lies
    from triton.backends.compiler import GPUTarget

    triton.runtime.cache.triton_key, triton.knobs.cache.dir = lambda: job.triton_key, job.folder
    function, keys = library_of(job.path)[job.name], pathlib.Path(job.path).with_name("cache_keys.py")
    spec = importlib.util.spec_from_file_location("cache_keys", keys)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(naming := importlib.util.module_from_spec(spec))
    naming.settle(function)
    source = language_of(function)(fn=function, signature=job.signature, constexprs=job.constants, attrs=job.attributes)
    triton.compile(source, target=GPUTarget(*job.target), options=job.options)


def language_of(function: Any) -> Any:
    """The class of what Triton compiles a function from."""
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource  # not every Triton has it

        return GluonASTSource
    from triton.compiler import ASTSource  # here, as everything of Triton's

    return ASTSource


@functools.cache
def library_of(path: str) -> dict[str, Any]:
    """The kernels of a file of the library, what they call and the constants that they read: without torch and the rest."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    scope: dict[str, Any] = {"__name__": pathlib.Path(path).stem, "__file__": path}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minicompile.kernels."):
            other = library_of(str(pathlib.Path(path).with_name(f"{(node.module or '').rpartition('.')[2]}.py")))
            scope.update({each.asname or each.name: other[each.name] for each in node.names if each.name in other})
        elif is_for_kernels(node):
            statement = compile(ast.Module([node], []), path, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
            with contextlib.suppress(NameError, AttributeError, ImportError):  # it is for the wrappers
                exec(statement, scope)
    return scope


def is_for_kernels(node: ast.stmt) -> bool:
    """Whether a statement may be one that kernels need: an import of Triton, a decorated function, a constant."""
    if isinstance(node, ast.Import):
        return all(each.name.partition(".")[0] == "triton" for each in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == "triton"
    return isinstance(node, (ast.Assign, ast.AnnAssign)) or isinstance(node, ast.FunctionDef) and bool(node.decorator_list)


@functools.lru_cache(maxsize=8)
def kernels_of(path: str) -> dict[str, Any]:
    """The `@triton.jit` functions of a file, and nothing else that it defines or imports but Triton."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    lines, tree = text.splitlines(), ast.parse(text)
    tree.body = [node for node in tree.body if lines[first_line(node) - 1].startswith(WANTED)]
    scope: dict[str, Any] = {"__name__": "kernels", "__file__": path}
    exec(compile(tree, path, "exec", dont_inherit=True), scope)
    return scope


def first_line(node: ast.stmt) -> int:
    """Where a statement begins, decorators included."""
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])


def answer(kind: str, *fields: Any) -> Any:
    """What is sent back for a job; a hand-written kernel is only filed."""
    if kind == LibraryJob.__name__:
        return filed(LibraryJob(*fields))
    job = Job(*fields)
    return tuple(compiled(job, kernels_of(job.path)[job.name]))


def main() -> None:
    """Serve one process until it has no more jobs."""
    jobs, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Triton prints is no result
    sys.path[:] = pickle.load(jobs)
    import triton  # only now it can be found

    def send(message: Any) -> None:
        pickle.dump(message, results)
        results.flush()

    send((triton.__version__, triton.__file__))
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def receive() -> None:
        try:
            while True:
                waiting.put(pickle.load(jobs))
        except Exception:  # the other end is gone, whatever it was that this read last
            os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        try:
            job = waiting.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            return
        try:
            send(answer(*job))
        except Exception as error:  # the asking process raises it, whatever Triton or its tools raised
            send(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
