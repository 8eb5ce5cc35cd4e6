"""The key under which a whole compiled graph is kept: everything that the stages after capture could read.

It holds the captured graph with all tensor metadata, values of constants, names and lines, the settings, torch's global
flags, versions, a hash of this library's own sources, and the device. Of sizes that vary it holds what capture assumed and
between which powers of two they lie, by which tiles are chosen. What cannot be described completely (functions that are
not torch's own, large constants) has no key: such a graph is compiled anew in every process.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import importlib
import os
import pathlib
import platform
import sys
import time
import types
from collections.abc import Iterable
from typing import Any

import sympy
import torch
import triton

from minicompile.config import Config
from minicompile.errors import Location
from minicompile.ir import autocast
from minicompile.ir.graph import CapturedGraph
from minicompile.ir.size_nodes import values_of_symbols
from minicompile.runtime.device import device_properties

IRRELEVANT_SETTINGS = frozenset({
    "cache", "cache_directory", "cache_megabytes", "disable", "dump_directory", "fullgraph", "recompile_limit",
    "suppress_errors", "verify",
})  # fmt: skip
PLAIN = frozenset({
    bool, int, float, complex, str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
})  # fmt: skip
LARGEST_CONSTANT = 2**20
PACKAGE = pathlib.Path(__file__).resolve().parents[1]
TRUSTED_FOLDERS = (str(PACKAGE) + os.sep, str(pathlib.Path(torch.__file__).resolve().parent) + os.sep)
MODULES_OF_BUILTINS = ("torch", "torch._C._nn", "torch._C._fft", "torch._C._linalg", "torch._C._special", "torch._C")
OPERATOR_NAMESPACES = ("aten", "prims", "minicompile")
_IMPORTED = time.time()

FLAGS = (
    "get_default_dtype", "are_deterministic_algorithms_enabled", "is_deterministic_algorithms_warn_only_enabled",
    "utils.deterministic.fill_uninitialized_memory", "get_float32_matmul_precision",
    "backends.fp32_precision", "backends.cuda.matmul.fp32_precision", "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction", "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cuda.flash_sdp_enabled", "backends.cuda.mem_efficient_sdp_enabled", "backends.cuda.math_sdp_enabled",
    "backends.cuda.cudnn_sdp_enabled", "backends.cuda.preferred_blas_library",
    "backends.cuda.preferred_linalg_library", "backends.cudnn.enabled", "backends.cudnn.benchmark",
    "backends.cudnn.deterministic", "backends.cudnn.allow_tf32", "backends.cudnn.fp32_precision",
    "backends.cudnn.conv.fp32_precision", "backends.cudnn.rnn.fp32_precision", "backends.mkldnn.enabled",
    "backends.mkldnn.fp32_precision", "backends.mkldnn.matmul.fp32_precision",
)  # fmt: skip
"""Names below `torch`; a function among them is called."""


class NotKeyed(Exception):
    """Something that a key cannot describe completely."""


@dataclasses.dataclass(frozen=True)
class GraphKey:
    """The key of a graph, and what is compared when something is kept or found under it.

    Attributes:
        text: the key.
        flags: torch's lasting flags when it was made: a half compiled under others is not kept under it.
        shape_env: what is known of sizes that vary, if any do; assumed: how much of that capture had assumed.
    """

    text: str
    flags: tuple[str, ...]
    shape_env: Any = None
    assumed: int = 0

    def assumptions(self) -> tuple[Any, ...]:
        """What the stages after capture assumed of sizes that vary: the graph is right where this holds, too."""
        return tuple(guard.expr for guard in self.shape_env.guards[self.assumed :]) if self.shape_env else ()

    def allows(self, assumptions: tuple[Any, ...]) -> bool:
        """Whether what an earlier process assumed holds at the present sizes; it is assumed from now on."""
        holds = (assumption.xreplace(values_of_symbols(self.shape_env)) is sympy.true for assumption in assumptions)
        return all(holds) and all(self.shape_env.evaluate_expr(assumption) for assumption in assumptions)


def graph_key(captured: CapturedGraph, config: Config) -> GraphKey | None:
    """The key of a captured graph under the present global state, or `None` if it cannot have one."""
    flags = lasting_flags()
    try:
        description = Description().graph(captured)
        devices = sorted(description.devices, key=str)
        lines = [
            library_version(), repr(environment()), repr(flags), repr(passing_flags()), repr(settings_of(config)),
            *(f"{device}: {device_properties(device)} {cuda_driver()}" for device in devices),
            *description.lines,
        ]  # fmt: skip
    except NotKeyed:
        return None
    text, env = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest(), description.shape_env
    return GraphKey(text, flags, env, len(env.guards) if env else 0)


class Description:
    """A captured graph as lines of text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.devices: set[torch.device] = set()
        self.shape_env: Any = None
        self._storages: dict[int, int] = {}

    def graph(self, captured: CapturedGraph) -> Description:
        """Describe all of `captured` that later stages read."""
        self.fields(captured, {"module", "inputs", "guards", "graph_break"})
        for entry in captured.inputs:
            self.fields(entry, set())
            self.lines.append(f"leaf: {getattr(entry.example, 'is_leaf', None)}")
        for node in captured.module.graph.nodes:
            self.lines.append(
                f"{node.name} = {node.op} {self.target(node, captured.module)} {self.value(node.args)} "
                f"{self.value(node.kwargs)} -> {self.value(node.meta.get('example_value'))} "
                f"{node.meta.get('variable')!r} {node.meta.get('location')!r}"
            )
            unknown = node.meta.keys() - {"example_value", "variable", "location"}
            if unknown:
                self.lines.append(self.value({name: node.meta[name] for name in sorted(unknown)}))
        if env := self.shape_env:
            sizes = {symbol: (int(n) - 1).bit_length() for symbol, n in values_of_symbols(env).items() if n.is_integer}
            self.lines.append(f"sizes: {sizes, [guard.expr for guard in env.guards], env.var_to_range, env.replacements}")
        return self

    def fields(self, record: Any, except_for: set[str]) -> None:
        """The fields of a dataclass, those that later versions add included."""
        names = [field.name for field in dataclasses.fields(record) if field.name not in except_for]
        self.lines += [f"{name}: {self.value(getattr(record, name))}" for name in names]

    def target(self, node: torch.fx.Node, module: torch.fx.GraphModule) -> str:
        """What a node calls or reads."""
        if node.op == "call_function":
            return function_name(node.target)
        if node.op == "get_attr":
            return f"{node.target} {self.constant(functools.reduce(getattr, str(node.target).split('.'), module))}"
        if node.op == "call_method":
            method = getattr(torch.Tensor, str(node.target), None)
            if isinstance(method, types.FunctionType) and not is_ours_or_torchs(method):
                raise NotKeyed(node.target)
        return str(node.target)

    def value(self, value: Any) -> str:
        """An argument or a fake result."""
        kind = type(value)
        if kind in PLAIN or kind is Location:
            return repr(value)
        if kind in (torch.SymInt, torch.SymFloat) and value.node.has_hint():
            self.shape_env = value.node.shape_env
            return str(value.node.expr)
        if kind is torch.fx.Node:
            return "%" + value.name
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, (tuple, list)):
            return f"{kind.__qualname__}({', '.join(map(self.value, value))})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self.value(key)}: {self.value(item)}' for key, item in value.items())}}}"
        if kind is slice:
            return f"slice({self.value(value.start)}, {self.value(value.stop)}, {self.value(value.step)})"
        if value is int or value is float or value is bool:
            return kind.__name__ + value.__name__
        raise NotKeyed(kind)

    def tensor(self, tensor: torch.Tensor) -> str:
        """Metadata, and which tensors share memory."""
        if tensor.layout is not torch.strided:
            raise NotKeyed(tensor.layout)
        storage = tensor.untyped_storage()
        numbers = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), storage.nbytes()
        if tensor.device.type != "cpu":
            self.devices.add(tensor.device)
        shared = self._storages.setdefault(storage._cdata, len(self._storages))
        described = self.value(numbers) if tensor._has_symbolic_sizes_strides else repr(numbers)
        return (
            f"{type(tensor).__name__} {described} {tensor.dtype} {tensor.device} {shared} "
            f"{tensor.requires_grad} {tensor.is_conj()} {tensor.is_neg()} {tensor.is_inference()}"
        )

    def constant(self, value: Any) -> str:
        """A tensor with its values."""
        if not isinstance(value, torch.Tensor) or value.numel() * value.element_size() > LARGEST_CONSTANT:
            raise NotKeyed("a constant")
        try:
            content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        except RuntimeError as failure:  # a fake tensor has no values
            raise NotKeyed("a constant") from failure
        return f"{self.tensor(value)} {hashlib.sha256(content).hexdigest()}"


def function_name(function: Any) -> str:
    """The name under which `named_function` finds this very function again, which must be torch's, Python's or ours."""
    if isinstance(function, torch._ops.OpOverload):
        name, overload = function._schema.name, function._overloadname
        if name.partition("::")[0] not in OPERATOR_NAMESPACES:
            raise NotKeyed(name)
        return f"torch.ops:{name.replace('::', '.')}.{overload}"
    if isinstance(function, types.FunctionType) and not is_ours_or_torchs(function):
        raise NotKeyed(function)
    qualified = str(getattr(function, "__qualname__", ""))
    if "<locals>" in qualified:  # max pooling, one function made of two
        qualified = function.__name__
    candidates: Iterable[str] = (getattr(function, "__module__", None) or "",)
    if isinstance(function, (types.BuiltinFunctionType, types.BuiltinMethodType)):
        qualified, candidates = qualified.rpartition(".")[2], (*candidates, *MODULES_OF_BUILTINS)
    for module in candidates:
        if module.partition(".")[0] in ("torch", "_operator", "math", "builtins", "minicompile"):
            name = f"{module}:{qualified}"
            if named_function(name) is function:
                return name
    raise NotKeyed(function)


def named_function(name: str) -> Any:
    """The function of a name made by `function_name`, or `None`."""
    module, _, qualified = name.partition(":")
    try:
        return functools.reduce(getattr, qualified.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return None


def is_ours_or_torchs(function: types.FunctionType) -> bool:
    """Whether a function's code lies in torch's folder or in this library's."""
    return os.path.realpath(function.__code__.co_filename).startswith(TRUSTED_FOLDERS)


def settings_of(config: Config) -> dict[str, Any]:
    """The settings that change what is generated."""
    names = (field.name for field in dataclasses.fields(config) if field.name not in IRRELEVANT_SETTINGS)
    return {name: getattr(config, name) for name in names}


def passing_flags() -> tuple[Any, ...]:
    """Torch's state of this thread, for the while of a `with` block."""
    modes = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    device = torch.get_default_device() if modes[0] else None
    return autocast.settings(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), modes, device


def lasting_flags() -> tuple[str, ...]:
    """Torch's state of the process; a flag that cannot be read (in this version, or now) is told by its error's type."""
    found = []
    for name in FLAGS:
        try:
            value = functools.reduce(getattr, name.split("."), torch)
            found.append(repr(value() if callable(value) else value))
        except (AttributeError, RuntimeError) as failure:
            found.append(type(failure).__name__)
    return tuple(found)


@functools.lru_cache(maxsize=1)
def versions() -> tuple[Any, ...]:
    """Of Python, torch, its CUDA, Triton, and the machine."""
    built = torch.version
    return (sys.version, torch.__version__, built.git_version, built.cuda, built.hip, triton.__version__, platform.machine())


def environment() -> tuple[Any, ...]:
    """Versions, how many GPUs there are, and the variables by which Triton is told to compile differently."""
    ignored = ("TRITON_CACHE", "TRITON_HOME", "TRITON_PRINT", "TRITON_DUMP", "TRITON_KERNEL_DUMP")
    return versions(), torch.cuda.device_count(), sorted(
        item for item in os.environ.items() if item[0].startswith("TRITON_") and not item[0].startswith(ignored)
    )


def library_version() -> str:
    """A hash of this library's sources; raises `NotKeyed` if one changed after this process loaded it."""
    digest, newest = library_sources()
    if newest > _IMPORTED:
        raise NotKeyed("this library changed")
    return digest


@functools.lru_cache(maxsize=1)
def library_sources() -> tuple[str, float]:
    """A hash of this library's sources, and when the last of them changed."""
    digest, newest = hashlib.sha256(), 0.0
    for path in sorted(p for p in PACKAGE.rglob("*") if p.suffix in (".py", ".jinja")):
        newest = max(newest, path.stat().st_mtime)
        digest.update(f"{path.relative_to(PACKAGE)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest(), newest


@functools.lru_cache(maxsize=1)
def cuda_driver() -> int:
    """The version of the CUDA driver, such as 13000 for 13.0; PyTorch has no name for it that all its versions share."""
    version = ctypes.c_int()
    if torch.version.cuda and torch.cuda.is_available():
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value
