"""Every use that capture makes of torch's private interfaces, and its classification of torch's public functions.

Written against torch 2.11, 2.13 and 2.15. Private names used: `torch._subclasses.FakeTensorMode`, `ShapeEnv`,
`torch._C._dynamo.guards.TensorGuards`, `torch._guards.Source`, `_is_compiling_flag` of `torch.compiler`, the
function and dispatch mode stacks, `_device_constructors`, the functorch interpreter stack, the dispatcher's keys. Must not
know about bytecode, sources or the user's program.
"""

import contextlib
import functools
import inspect
import logging
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch._C._dynamo.guards import TensorGuards as TensorGuards
from torch._guards import Source
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import DimDynamic, GuardOnDataDependentSymNode, ShapeEnv
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges
from torch.utils.checkpoint import checkpoint

from minicompile.capture.fake_results import RememberingFakeMode
from minicompile.capture.kinds import isinstance
from minicompile.ir import autocast
from minicompile.ir.fake_mode import BEFORE_TORCH_2_13, storage_key

FAKE_TENSOR_LOG = logging.getLogger("torch._subclasses.fake_tensor")
DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode,
                  UnsupportedFakeTensorException)


def new_fake_mode() -> RememberingFakeMode:
    """A fake tensor mode whose data-dependent operations raise instead of inventing symbols."""
    return RememberingFakeMode(allow_non_fake_inputs=False)


def shape_env_of(mode: RememberingFakeMode, here: Callable[[], Any]) -> Any:
    """What is known of a mode's symbols, made with the first of them: most graphs have none, and torch takes seconds
    to import what it needs. `here` gives the place of an assumption. PyTorch's cache of fake results costs more than it saves."""
    if mode.shape_env is None:
        env: Any = ShapeEnv(duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        env.guards, env.bounds_at_first = PlacedList(here), {}
        mode.shape_env, mode.static_shapes, mode.cache_enabled = env, False, False
    return mode.shape_env


class PlacedList(list[Any]):
    """A list that remembers where the user's program was when each item was added.

    Attributes:
        here: gives the place; places: one an item.
    """

    def __init__(self, here: Callable[[], Any]) -> None:
        super().__init__()
        self.here = here
        self.places: list[Any] = []

    def append(self, item: Any) -> None:
        """Add an item made at the present place."""
        super().append(item)
        self.places.append(self.here())


class SymbolTag(Source):
    """What `ShapeEnv` is told that a symbol stands for: a name. (The tags of `torch._dynamo` take seconds to import.)"""

    def __init__(self, name: str) -> None:
        vars(self)["name"] = name

    name: Any = None


def new_symbol(env: Any, value: int, name: str, low: int, high: int | None) -> tuple[Any, torch.SymInt]:
    """A new symbol and its symbolic number; `low` is 2 or more for sizes, which are positive."""
    tag = SymbolTag(name)
    if low >= 2:
        symbol = env.create_symbol(value, tag, DimDynamic.DYNAMIC)
    else:
        symbol = env.create_unspecified_symbol(value, tag, DimDynamic.DYNAMIC)
    env.var_to_range[symbol] = ValueRanges(low, int_oo if high is None else high)
    env.bounds_at_first[symbol] = low, high
    return symbol, env.create_symintnode(symbol, hint=value, source=tag)


def symbolic_fake(mode: RememberingFakeMode, like: torch.Tensor, sizes: Any, strides: Any) -> FakeTensor:
    """A fake tensor with the metadata of `like` but other, symbolic, sizes and strides; a view of nothing."""
    with torch.inference_mode(like.is_inference()), torch._C._DisableTorchDispatch():
        fake = mode.fake(torch.empty_strided(sizes, strides, dtype=like.dtype, device="meta"), like.device)
    if like.requires_grad and like.is_leaf:
        fake.requires_grad_()
    elif like.requires_grad:
        # Adding what requires a gradient makes it the result of an operation.
        with torch.inference_mode(False), torch.enable_grad(), mode:
            fake.add_(torch.zeros((), dtype=like.dtype, device=like.device, requires_grad=True))
        del mode.written[storage_key(fake)]
    return fake


def fake_input(mode: RememberingFakeMode, real: torch.Tensor) -> FakeTensor:
    """A fake tensor for a traceable one; by PyTorch's slow way where there is more to it than `symbolic_fake` gives."""
    tracked = real.requires_grad and (not real.is_leaf or getattr(real, "grad_dtype", real.dtype) != real.dtype)
    if tracked or real._is_view() or real.storage_offset() or not real.untyped_storage().nbytes():
        return mode.from_tensor(real, static_shapes=True)
    fake = symbolic_fake(mode, real, real.shape, real.stride())
    if isinstance(real, torch.nn.Parameter):
        fake._is_param = True  # what `isinstance` asks
    return fake


FORGETFUL_CHECKPOINT = inspect.unwrap(checkpoint).__code__ if BEFORE_TORCH_2_13 else None
"""Code that leaves its saved-tensor hooks active after an error, for as long as its frame lives; 2.13's takes them away."""

fp32_precision: Callable[[str, str], str] = torch._C._get_fp32_precision_getter
# Bound once, because every call of a compiled function asks for the state, and looking names up would double the time.
any_autocast, grad_enabled, default_dtype = torch._C._is_any_autocast_enabled, torch.is_grad_enabled, torch.get_default_dtype
inference_enabled, deterministic = torch.is_inference_mode_enabled, torch._C._get_deterministic_algorithms
fills_memory = torch._C._get_deterministic_fill_uninitialized_memory
function_modes, dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
transform, tracing_state = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state
saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks


def modes_above(count: int) -> list[Any]:
    """The active torch function modes, the innermost first; asked so that none of them sees the question."""
    return [torch._C._get_function_stack_at(place) for place in reversed(range(count))]


def default_devices(modes: int) -> tuple[torch.device, ...]:
    """The devices that modes make the default, the innermost first."""
    return tuple(mode.device for mode in modes_above(modes) if isinstance(mode, DeviceContext))


def with_default_device(function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a torch function with the device that a mode gives it, which is gone when the graph runs."""
    devices = default_devices(function_modes())
    if devices and kwargs.get("device") is None and function in _device_constructors():
        return {**kwargs, "device": devices[0]}
    return kwargs


def torch_state() -> tuple[Any, ...]:
    """The part of torch's global state that changes what a captured graph means."""
    modes = function_modes()
    return (
        grad_enabled(), default_dtype(), any_autocast() and autocast.settings(), inference_enabled(), deterministic(),
        modes and default_devices(modes), modes, dispatch_modes(), transform() is None,
        forward_ad._current_level, saved_tensor_hooks(False) is not None, fp32_precision("cuda", "matmul"),
        tracing_state() is not None, fills_memory(),
    )


STATE_NAMES = ("grad mode", "the default dtype", "autocast", "inference mode", "deterministic algorithms",
               "the default device", "the torch function modes", "the torch dispatch modes", "the torch.func transforms",
               "the forward-mode level", "hooks on saved tensors", "the precision of fp32 matrix products", "torch.jit tracing",
               "the filling of memory")


def unusable_state(state: tuple[Any, ...]) -> str | None:
    """Why nothing can be captured under `state`, or `None`."""
    foreign = not all(isinstance(mode, DeviceContext) for mode in modes_above(state[6]))
    reasons = ((foreign, "a torch function mode is active"), (state[7], "a torch dispatch mode is active"),
               (state[9] >= 0, "forward-mode differentiation is active"), (state[10], "hooks on saved tensors are active"),
               (not state[8], "a torch.func transform is active"), (state[12], "torch.jit is tracing"))
    return next((reason for active, reason in reasons if active), None)


def restore_state(state: tuple[Any, ...], settings: tuple[Any, ...], blocks: int) -> None:
    """Put back what tracing may have changed of torch's global state; so many `autocast` blocks are open."""
    if grad_enabled() != state[0]:
        torch._C._set_grad_enabled(state[0])
    autocast.restore(settings, blocks)
    now, wanted = list(default_devices(function_modes())), list(state[5] or ())
    while now != wanted[len(wanted) - len(now):]:
        torch._C._pop_torch_function_stack()
        del now[0]
    for device in reversed(wanted[: len(wanted) - len(now)]):
        torch._C._push_on_torch_function_stack(DeviceContext(device))


@contextlib.contextmanager
def compiling(flag: bool = True) -> Iterator[None]:
    """Make `torch.compiler.is_compiling()` true (or false), and let fake tensors fail without a word on stderr."""
    before = torch.compiler._is_compiling_flag, FAKE_TENSOR_LOG.disabled
    torch.compiler._is_compiling_flag, FAKE_TENSOR_LOG.disabled = flag, True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag, FAKE_TENSOR_LOG.disabled = before


def dispatcher_as_it_is() -> contextlib.AbstractContextManager[Any]:
    """In the end the dispatcher is what it was in the beginning."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(included, excluded)


def forget_frames(error: BaseException, handled: BaseException | None) -> None:
    """Let go of what the frames of an error hold: guards of PyTorch's, which set the dispatcher back when they die. Those of
    the error that was handled when it came, and of what came before, are the user's."""
    found: BaseException | None = error
    with dispatcher_as_it_is():
        while found is not None and found is not handled:
            traceback.clear_frames(found.__traceback__)
            found = found.__context__


@contextlib.contextmanager
def dispatcher_kept() -> Iterator[None]:
    """The dispatcher is left as it is found: a transform of `torch.func` that fails inside of PyTorch may leave it without
    gradients, for whatever this thread runs afterwards."""
    handled = sys.exception()
    with dispatcher_as_it_is():
        try:
            yield
        except Exception as error:
            forget_frames(error, handled)
            raise


def is_traceable(tensor: torch.Tensor) -> str | None:
    """Why a tensor cannot be a graph input, or `None` if it can."""
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter and kind is not torch.nn.Buffer:
        return f"a tensor of the subclass {kind.__name__}"
    if tensor.layout is not torch.strided or tensor._is_view() and tensor._base.layout is not torch.strided:
        return "a sparse tensor"
    if tensor.is_quantized:
        return "a quantised tensor"
    if tensor.is_nested:
        return "a nested tensor"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "a tensor inside a torch.func transform"
    if tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor():
        return "a tensor of numbers that are not in memory"
    return None


def named(names: str) -> frozenset[Any]:
    """The functions below `torch` of these names that this version of it has."""
    def part_of(owner: Any, part: str) -> Any:
        return getattr(owner, part, None)

    found = (functools.reduce(part_of, name.split("."), torch) for name in names.split())
    return frozenset(function for function in found if function is not None)


# Functions that only ask about metadata or global state; they run while tracing and leave no node.
QUERIES = named("""
is_tensor is_floating_point is_complex is_grad_enabled get_default_dtype finfo iinfo device Size broadcast_shapes
promote_types result_type can_cast numel is_inference_mode_enabled is_autocast_enabled jit.is_scripting jit.is_tracing
compiler.is_compiling compiler.is_dynamo_compiling _C._get_deterministic_algorithms cuda.is_available
are_deterministic_algorithms_enabled get_default_device _C._get_tracing_state overrides.has_torch_function
overrides.has_torch_function_unary overrides.has_torch_function_variadic overrides.is_tensor_like is_storage
backends.cuda.is_flash_attention_available amp.is_autocast_available _C._is_torch_function_mode_enabled is_same_size dtype
is_distributed _C._infer_size nn.modules.utils._single nn.modules.utils._pair nn.modules.utils._triple _C._is_any_autocast_enabled
is_autocast_cpu_enabled distributed.is_available _C._log_api_usage_once _C._len_torch_function_stack
_C._get_function_stack_at _C._len_torch_dispatch_stack cuda.device_count _C._get_privateuse1_backend_name _C._is_tracing
_C._is_torch_function_enabled _C._is_default_mobile_cpu_allocator_set accelerator.current_accelerator xpu.is_available
cuda.amp.common.amp_definitely_not_available _C._get_cpu_capability fx.experimental.symbolic_shapes._advise_is_size
fx.experimental.symbolic_shapes._advise_is_bounded
""")

# Those whose answer may change between calls, and is no part of `torch_state`.
GUARDED_QUERIES = named("""
distributed.is_initialized backends.mha.get_fastpath_enabled get_autocast_dtype get_autocast_cpu_dtype get_autocast_gpu_dtype
is_autocast_cache_enabled get_deterministic_debug_mode get_float32_matmul_precision get_num_threads is_anomaly_enabled
is_anomaly_check_nan_enabled is_warn_always_enabled _C._get_deterministic_algorithms_warn_only _C._get_cublas_allow_tf32
_C._get_cudnn_enabled _C._get_cudnn_benchmark _C._get_cudnn_deterministic _C._get_cudnn_allow_tf32 _C._get_mkldnn_enabled
_C._get_float32_matmul_precision _C._get_math_sdp_allow_fp16_bf16_reduction _C._is_multithreading_enabled
cuda.is_current_stream_capturing cuda.current_device cuda.get_device_capability cuda.get_device_name cuda.is_bf16_supported
""") | {*autocast.ASK_ATTENTION}

# Those that ask for transforms of `torch.func`: none is active while a function is captured that one is applied to.
TRANSFORM_QUERIES = named("""
_C._are_functorch_transforms_active _C._functorch.peek_interpreter_stack autograd.forward_ad.unpack_dual""")

# Functions that change torch's state: they run while tracing (and are undone), and are nodes of the graph.
STATE_CHANGES: frozenset[Any] = frozenset({
    torch._C._set_grad_enabled, torch.set_autocast_enabled, torch.set_autocast_dtype, torch.set_autocast_cache_enabled,
    torch.autocast_increment_nesting, torch.autocast_decrement_nesting, torch.clear_autocast_cache,
    *autocast.SET_ATTENTION,
})

# Functions that look like operations but act on the process, on the autograd engine or on real storage.
NEVER_IN_GRAPH: dict[Any, str] = {
    torch.manual_seed: "random seed", torch.seed: "random seed", torch.initial_seed: "random seed",
    torch.get_rng_state: "random seed", torch.set_rng_state: "random seed",
    torch.save: "input or output", torch.load: "input or output", torch.from_numpy: "NumPy",
    **dict.fromkeys(named("""
        set_default_dtype set_default_device set_default_tensor_type set_num_threads set_num_interop_threads set_flush_denormal
        use_deterministic_algorithms set_deterministic_debug_mode set_anomaly_enabled set_float32_matmul_precision
        set_warn_always backends.mha.set_fastpath_enabled set_autocast_cpu_enabled set_autocast_cpu_dtype
        set_autocast_gpu_dtype"""), "global torch setting"),
    torch.autograd.grad: "autograd call", torch.autograd.backward: "autograd call", torch.compile: "nested compiler",
    torch.set_printoptions: "input or output", torch.is_nonzero: "tensor value",
    torch.equal: "tensor value", torch.allclose: "tensor value",
    torch._has_compatible_shallow_copy_type: "real memory", torch._debug_has_internal_overlap: "real memory",
    torch.frombuffer: "real memory", torch.from_file: "real memory", torch.cond: "higher-order operator",
    torch.lstm: "recurrent network", torch.gru: "recurrent network", torch.resize_as_: "real memory",
    **dict.fromkeys(named("_fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_"), "optimizer"),  # one kernel as they are
    torch.rnn_tanh: "recurrent network", torch.rnn_relu: "recurrent network",
}
METHODS_NEVER_IN_GRAPH: dict[str, str] = {name: kind for kind, names in {
    "tensor value": """
        item tolist __bool__ __float__ __int__ __index__ __complex__ equal allclose is_nonzero __contains__ apply_ map_""",
    "NumPy": "numpy __array__",
    "autograd call": "backward retain_grad requires_grad_ detach_",
    "tensor hook": "register_hook register_post_accumulate_grad_hook",
    "real memory": """
        data_ptr untyped_storage storage is_set_to __reduce_ex__ __deepcopy__ set_ share_memory_ __hash__ resize_ resize_as_
        pin_memory is_shared __dlpack__ to_mkldnn __setstate__ storage_offset _is_view""",
    "input or output": "__repr__ __str__ __format__ __dir__",
    "sparse tensor": "to_sparse to_sparse_csr",
    "tensor subclass": "as_subclass",
}.items() for name in names.split()}
TENSOR_QUERY_METHODS = frozenset({
    "size", "stride", "dim", "ndimension", "numel", "nelement", "element_size", "is_floating_point",
    "is_complex", "is_contiguous", "is_signed", "get_device", "is_inference", "is_conj", "is_neg", "is_same_size",
    "dim_order", "has_names", "is_pinned",
})
VIEW_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag"})
METADATA_PROPERTIES = frozenset({
    "shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "layout", "is_cuda", "is_cpu", "is_sparse",
    "is_quantized", "is_meta", "is_nested", "is_mps", "is_xpu", "is_mkldnn", "itemsize", "nbytes", "names",
    "is_sparse_csr", "is_xla", "is_ipu", "is_vulkan", "is_maia", "is_mtia",
}) & set(dir(torch.Tensor))


ROLES: dict[Any, str] = {**dict.fromkeys(NEVER_IN_GRAPH, "never"), **dict.fromkeys(STATE_CHANGES, "state"),
                         **dict.fromkeys(QUERIES | GUARDED_QUERIES | TRANSFORM_QUERIES, "query")}


def collect_operations() -> set[int]:
    """Identities of the torch functions that become nodes."""
    found: set[int] = set()
    spaces = (torch, F, torch.linalg, torch.fft, torch.special, torch._C._nn, torch.functional, torch._C._VariableFunctions,
              torch._C._linalg, torch._C._fft, torch._C._special)
    for space in spaces:
        for name in dir(space):
            value = getattr(space, name, None)
            if name.startswith("__") or isinstance(value, (type, types.ModuleType)) or not callable(value):
                continue
            owner = getattr(value, "__module__", None) or "torch"
            if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)) or owner in (
                "torch.nn.functional", "torch.functional", "torch._jit_internal", "torch._VF", "torch"
            ):
                found.add(id(value))
    found.difference_update(map(id, ROLES))
    checks = ("_check", "_check_index", "_check_value", "_check_type", "_check_not_implemented", "_check_tensor_all")
    for name in ("typename", "compile", "get_device_module", "is_deterministic_algorithms_warn_only_enabled", *checks):
        found.discard(id(getattr(torch, name, None)))
    found.discard(id(F.gaussian_nll_loss))  # looks at values and raises, which a program may
    found.discard(id(F.triplet_margin_with_distance_loss))  # calls a function of the user's
    return found


OPERATIONS = collect_operations()


def classify(function: Any) -> str | None:
    """`operation`, `query`, `state`, `never`, or `None` for a callable that is not a torch function."""
    if id(function) in OPERATIONS:
        return "operation"
    operator_kinds = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch.library.CustomOpDef)
    of_torch = isinstance(function, operator_kinds)
    if not of_torch and isinstance(type(function).__hash__, types.FunctionType):  # the user's
        return None
    try:
        role = ROLES.get(function)
    except TypeError:
        return None
    return "operation" if role is None and of_torch else role


def is_allowed_in_graph(function: Any) -> bool:
    """Whether a function was given to `torch.compiler.allow_in_graph`, which imports what keeps such functions."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    return rules is not None and rules.is_callable_allowed(function)


def lacks_gradient_rule(function: Any) -> bool:
    """Whether a function is an operator of somebody else's through whose kernels autograd sees: fake ones compute nothing."""
    if not isinstance(function, torch._ops.OpOverload) or function.namespace in ("aten", "prims", "minicompile"):
        return False
    keys = ("Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd")
    return not any(torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key) for key in keys)


# Python code of torch that is not interpreted, by the start of its module's name: the kind of graph break.
UNTRACED: dict[str, str] = {
    **dict.fromkeys(("torch._dynamo", "torch._compile", "torch._inductor"), "nested compiler"),
    **dict.fromkeys(("torch._functorch", "torch.func"), "torch.func transform"),
    **dict.fromkeys((
        "torch.optim.lr_scheduler", "torch.optim.lbfgs", "torch.optim.swa_utils", "torch.amp.grad_scaler"), "optimizer"),
    **dict.fromkeys(("torch.random", "torch.cuda.random"), "random seed"),
    "torch.nn.attention.flex_attention": "higher-order operator",
    **dict.fromkeys(("torch.autograd.function", "torch.utils.checkpoint"), "custom autograd function"),
    **dict.fromkeys(("torch._tensor_str", "torch.serialization", "torch._logging"), "input or output"),
    **dict.fromkeys((
        "torch._higher_order_ops", "torch.distributed", "torch.jit", "torch.utils.data", "torch.export", "torch.fx",
        "torch.cuda", "torch.autograd.forward_ad", "torch.autograd.graph", "torch.autograd.profiler",
        "torch.multiprocessing", "torch.profiler"), "unknown call"),
}
UNTRACED_PREFIXES = tuple(UNTRACED)
RECURRENT = frozenset({"RNN.forward", "LSTM.forward", "GRU.forward"})
TRACED = ("functional_call", "checkpoint_sequential", "AveragedModel.forward", "get_ema_", "get_swa_", "annotate", "vmap", "grad",
          "jac", "hessian", "_wraps_without_dynamo_attrs", "_check_randomness_arg", "FunctionCtx.", "GraphModule.recompile.",
          "_WrappedCall.", "LRScheduler.__init__.<locals>.", "autocast.", "_CheckpointedFunction.", "_make_checkpoint_wrapper",
          "CheckpointWrapper.forward", "ActivationWrapper.",
          "_script_if_tracing.", "isinstance", "_unwrap_optional", "is_fx_tracing", "is_fx_symbolic_tracing", "is_compiling")


OPTIMIZERS = str(Path(torch.optim.__file__).parent)


def is_of_optimizers(code: types.CodeType) -> bool:
    """Whether code is a part of PyTorch's optimizers."""
    return code.co_filename.startswith(OPTIMIZERS)


def unpatched(function: types.FunctionType) -> types.FunctionType:
    """The function itself, or what Dynamo has wrapped once it was used: `Module.__init__` also counts modules for it then,
    and parts of optimizers are closed to compilers. Of what PyTorch calls deprecated it warns here."""
    if "__deprecated__" in function.__dict__ and is_library(getattr(function.__dict__.get("__wrapped__"), "__module__", None)):
        warnings.warn(function.__dict__["__deprecated__"], FutureWarning, stacklevel=2)
        return function.__dict__["__wrapped__"]
    original = function.__dict__.get("_torchdynamo_orig_callable")
    if isinstance(original, types.FunctionType) and is_of_optimizers(original.__code__):
        return original
    if function.__qualname__ == "install_generation_tagging_init.<locals>.patched_init" and function.__closure__:
        return function.__closure__[function.__code__.co_freevars.index("init")].cell_contents
    return function


def why_untraced(function: types.FunctionType) -> str | None:
    """The kind of graph break for a Python function of torch that is called as it is, or `None`."""
    module = function.__globals__.get("__name__") or ""
    if module == "torch.autograd.functional":
        return "autograd call"
    if module.startswith(UNTRACED_PREFIXES) and not function.__code__.co_qualname.startswith(TRACED):
        return next(kind for prefix, kind in UNTRACED.items() if module.startswith(prefix))
    if function is torch.nn.Module._apply:
        return "real memory"
    if module == "torch.nn.modules.rnn" and function.__qualname__ in RECURRENT:
        return "recurrent network"
    return "recurrent network" if module == "torch.nn.utils.rnn" and "pack" in function.__name__ else None


# Names of the methods of `torch.Tensor` that may become `call_method` nodes.
TENSOR_METHODS = frozenset(name for name in dir(torch.Tensor) if callable(value := getattr(torch.Tensor, name, None))
                           and not isinstance(value, type))
WRITTEN_IN_TENSOR = dict(vars(torch.Tensor))
"""The attributes of the class itself, as PyTorch made them."""


def is_library(module: str | None) -> bool:
    """Whether a module is one of PyTorch's."""
    return module is not None and module.partition(".")[0] == "torch"
