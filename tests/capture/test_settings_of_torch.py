"""A captured function that asks for a setting of torch, or changes it, does as eager does after each change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import backends
from torch.distributions import Distribution

from tests.capture.support import capture, same_as_eager

OTHER_VALUES: dict[str, tuple[Any, ...]] = {
    "get_default_dtype()": (torch.set_default_dtype, torch.float64, torch.float32),
    "get_default_device()": (torch.set_default_device, "meta", "cpu", None),
    "are_deterministic_algorithms_enabled()": (torch.use_deterministic_algorithms, True, False),
    "get_deterministic_debug_mode()": (torch.set_deterministic_debug_mode, 1, 2, 0),
    "is_deterministic_algorithms_warn_only_enabled()": (torch.set_deterministic_debug_mode, 1, 2, 0),
    "get_float32_matmul_precision()": (torch.set_float32_matmul_precision, "high", "medium", "highest"),
    "backends.cuda.matmul.allow_tf32": (lambda value: setattr(backends.cuda.matmul, "allow_tf32", value), True, False),
    "backends.cudnn.benchmark": (lambda value: setattr(backends.cudnn, "benchmark", value), True, False),
    "backends.cudnn.enabled": (lambda value: setattr(backends.cudnn, "enabled", value), False, True),
    "backends.mkldnn.enabled": (lambda value: setattr(backends.mkldnn, "enabled", value), False, True),
    "_C._get_mkldnn_enabled()": (lambda value: setattr(backends.mkldnn, "enabled", value), False, True),
    "backends.opt_einsum.enabled": (lambda value: setattr(backends.opt_einsum, "enabled", value), False, True),
    "backends.mha.get_fastpath_enabled()": (backends.mha.set_fastpath_enabled, False, True),
    "backends.cuda.flash_sdp_enabled()": (backends.cuda.enable_flash_sdp, False, True),
    "backends.cuda.fp16_bf16_reduction_math_sdp_allowed()": (backends.cuda.allow_fp16_bf16_reduction_math_sdp, True, False),
    "get_num_threads()": (torch.set_num_threads, 2, 1),
    "is_grad_enabled()": (torch.set_grad_enabled, False, True),
    "is_anomaly_enabled()": (torch.set_anomaly_enabled, True, False),
    "is_anomaly_check_nan_enabled()": (lambda value: torch.set_anomaly_enabled(False, value), False, True),
    "is_warn_always_enabled()": (torch.set_warn_always, True, False),
    "is_autocast_enabled('cpu')": (lambda value: torch.set_autocast_enabled("cpu", value), True, False),
    "is_autocast_enabled('xpu')": (lambda value: torch.set_autocast_enabled("xpu", value), True, False),
    "get_autocast_dtype('cpu')": (lambda value: torch.set_autocast_dtype("cpu", value), torch.float16, torch.bfloat16),
    "get_autocast_dtype('cuda')": (lambda value: torch.set_autocast_dtype("cuda", value), torch.bfloat16, torch.float16),
    "get_autocast_gpu_dtype()": (torch.set_autocast_gpu_dtype, torch.bfloat16, torch.float16),
    "is_autocast_cache_enabled()": (torch.set_autocast_cache_enabled, False, True),
    "autograd.is_multithreading_enabled()": (torch._C._set_multithreading_enabled, False, True),
    "distributions.Distribution._validate_args": (Distribution.set_default_validate_args, False, True),
}


@pytest.fixture(autouse=True)
def _settings_may_change() -> Iterator[None]:
    """PyTorch's own test helpers, which other tests of a process import, forbid it."""
    with torch.backends.__allow_nonbracketed_mutation():
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("setting", OTHER_VALUES)
def test_a_setting_is_as_it_is_at_each_call(setting: str) -> None:
    change_to, *values = OTHER_VALUES[setting]
    ask = eval(f"lambda: torch.{setting}", {"torch": torch})

    def asking(x: torch.Tensor) -> Any:
        return x + 1, ask()

    def changing(x: torch.Tensor, value: Any) -> Any:
        x = x * 2
        change_to(value)
        return x + 1, ask()

    before, asked, changed = ask(), capture(asking), capture(changing)
    x = torch.ones(2)
    try:
        for value in (*values, *values):
            change_to(value)
            assert asked(x)[1] == ask()
        for value in (*values, *values):
            change_to(value)
            expected = ask()
            change_to(values[0])
            assert changed(x, value)[1] == expected == ask()
    finally:
        change_to(values[-1] if setting != "get_num_threads()" else before)


def test_the_casts_outside_of_a_block_are_guarded_inside_of_it() -> None:
    """Within a block for the CPU, the dtype for GPUs is the one outside of it, and the block's own depends on nothing."""

    def asking(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.float16):
            return x + 1, torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")

    asked, x = capture(asking, fullgraph=True), torch.ones(2)
    try:
        for dtype in (torch.float16, torch.bfloat16, torch.float16):
            torch.set_autocast_dtype("cuda", dtype)
            assert asked(x)[1:] == (torch.float16, dtype)
            assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    finally:
        torch.set_autocast_dtype("cuda", torch.float16)


def test_whether_derivatives_go_forward_is_asked_of_no_graph() -> None:
    """As libraries ask before they take a faster way that has no such derivatives."""

    def asking(x: torch.Tensor) -> torch.Tensor:
        plain = torch.autograd.forward_ad.unpack_dual(x).tangent is None and not torch._C._are_functorch_transforms_active()
        return x * 2 if plain else x * 3

    asked, x = capture(asking, fullgraph=True), torch.ones(2)
    assert torch.equal(asked(x), x * 2)
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(asked(torch.autograd.forward_ad.make_dual(x, x)), x * 3)
    assert torch.equal(torch.func.vmap(asked)(x), x * 3)
    assert torch.equal(asked(x), x * 2)
    for applied in (torch.func.vmap(asking), torch.func.grad(lambda x: asking(x).sum()), lambda x: torch.func.jvp(asking, (x,), (x,))):
        for expected, result in zip(applied(x), capture(lambda x, applied=applied: applied(x))(x), strict=True):
            assert torch.equal(result, expected)


def test_what_a_setting_refuses_is_refused() -> None:
    def asking(x: torch.Tensor) -> Any:
        try:
            return x + 1, torch.get_autocast_dtype("nowhere")
        except RuntimeError as error:
            return x + 2, str(error)

    assert capture(asking)(torch.ones(2))[1] == asking(torch.ones(2))[1]


def asking_for_a_gpu(x: torch.Tensor) -> Any:
    try:
        found: Any = torch.cuda.get_device_capability(x.device), torch.cuda.get_device_name(), torch.cuda.current_device()
    except (AssertionError, RuntimeError, ValueError) as error:
        found = str(error)
    return x + 1, found, torch.cuda.is_bf16_supported(), torch.cuda.amp.common.amp_definitely_not_available()


def test_what_a_gpu_can_do_is_asked_within_a_graph() -> None:
    same_as_eager(asking_for_a_gpu, torch.ones(2), fullgraph=True)


@pytest.mark.gpu
def test_a_gpu_is_asked_and_casts_within_a_graph() -> None:
    x, weight = torch.randn(4, 8, device="cuda"), torch.randn(8, 8, device="cuda")

    def casting(x: torch.Tensor) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return x @ weight

    same_as_eager(asking_for_a_gpu, x, fullgraph=True)
    assert same_as_eager(casting, x, fullgraph=True)(x).dtype == torch.bfloat16


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the class has no __new__ there beneath the one that warns")
def test_an_autocast_that_torch_calls_deprecated_is_a_part_of_the_graph() -> None:
    def casting(x: torch.Tensor) -> Any:
        with torch.cpu.amp.autocast(dtype=torch.bfloat16):
            return x @ x

    captured, x = capture(casting, fullgraph=True), torch.randn(4, 4)
    with pytest.warns(FutureWarning, match="is deprecated"):
        assert captured(x).dtype == torch.bfloat16
