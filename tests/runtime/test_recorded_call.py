"""A recorded wrapper of a hand-written kernel gives what the wrapper gives, for new tensors and other options."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from minicompile.kernels.flash_attention import attention_backward, attention_forward
from minicompile.kernels.mask_bounds import mask_bounds
from minicompile.runtime.recorded_call import Address, FixedCall, NotRecordable, RecordedCall, Recording, Watch, places


class Compiled:
    """What Triton gives for a launch, as far as a recording looks at it."""


def recorded(inputs: list[torch.Tensor], *launched: torch.Tensor) -> Recording:
    """The recording of a call with these inputs that launched a kernel with those tensors."""
    watch = Watch()
    watch.launches.append((Compiled(), (1,), launched))
    return watch.recording(inputs, [])


def test_parts_of_one_memory_are_told_apart() -> None:
    q, k, v = torch.randn(3, 2, 4, 8).unbind(0)
    (launch,) = recorded([q, v, k], q, k, v.view(4, 16)).launches
    assert launch.arguments == (Address(0, 0), Address(2, 0), Address(1, 0))
    (launch,) = recorded([q], q[1:]).launches
    assert launch.arguments == (Address(0, q[1:].data_ptr() - q.data_ptr()),)


def test_a_part_of_what_may_be_either_of_two_is_not_recorded() -> None:
    q, k = torch.randn(2, 4, 8).unbind(0)
    with pytest.raises(NotRecordable, match="part of several"):
        recorded([q, k], q[1:])


def test_tensors_at_one_address_are_not_taken_for_tensors_at_two() -> None:
    x, y = torch.randn(8), torch.randn(8)
    one = recorded([x, x, y], x, x, y)
    assert places([t.data_ptr() for t in (y, y, x)]) == (one.aligned, one.same)
    assert places([t.data_ptr() for t in (y, x, x)]) != (one.aligned, one.same)


def tensors(length: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    packed = torch.randn(2, length, 3, 4, 64, device="cuda", dtype=dtype)
    return list(packed.permute(2, 0, 3, 1, 4).unbind(0))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, precision", [(torch.bfloat16, None), (torch.float32, None), (torch.float32, "halves")])
def test_attention_forward_and_backward(dtype: torch.dtype, precision: str | None) -> None:
    forward, backward = RecordedCall(attention_forward), RecordedCall(attention_backward)
    for length, upper in ((256, 0), (256, 0), (256, None), (128, 0), (256, 0), (256, None)):
        q, k, v = tensors(length, dtype)
        out, lse = forward(q, k, v, None, None, upper, 0.125, 0.0, None, False, precision)
        expected, expected_lse = attention_forward(q, k, v, None, None, upper, 0.125, 0.0, None, False, precision)
        torch.testing.assert_close(out, expected, rtol=0, atol=0)
        torch.testing.assert_close(lse, expected_lse, rtol=0, atol=0)
        assert out.stride() == expected.stride()
        gradient = torch.randn_like(out)
        ours = backward(gradient, q, k, v, out, lse, None, None, upper, 0.125, 0.0, None, False, precision)
        eager = attention_backward(gradient, q, k, v, out, lse, None, None, upper, 0.125, 0.0, None, False, precision)
        for one, other in zip(ours, eager, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert all(recording is not None for recording in forward._recordings.values())
    assert all(recording is not None for recording in backward._recordings.values())


@pytest.mark.gpu
def test_a_long_backward_with_sums_and_descriptors_of_its_own() -> None:
    """dQ may be added up in any order (`flash_attention_gluon_backward.py`), so it is compared to rounding."""
    backward = RecordedCall(attention_backward)
    for _ in range(3):
        q, k, v, gradient = (torch.randn(4, 8, 1024, 128, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        given = (gradient, q, k, v, *attention_forward(q, k, v, None, None, 0))
        (dq, *rest), (expected_dq, *expected) = (call(*given, None, None, 0)[:3] for call in (backward, attention_backward))
        torch.testing.assert_close(rest, expected, rtol=0, atol=0)
        torch.testing.assert_close(dq, expected_dq, rtol=2e-2, atol=2e-3)
        with deterministic_algorithms():
            exact = [call(*given, None, None, 0)[:3] for call in (backward, attention_backward)]
        torch.testing.assert_close(*exact, rtol=0, atol=0)
    assert len(backward._recordings) == 2 and all(recording is not None for recording in backward._recordings.values())


@contextlib.contextmanager
def deterministic_algorithms() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
def test_memory_at_an_odd_address_is_not_replayed() -> None:
    forward = RecordedCall(attention_forward)
    storage = torch.randn(3 * 2 * 4 * 128 * 64 + 8, device="cuda", dtype=torch.bfloat16)
    for offset in (0, 0, 1, 0):
        q, k, v = storage[offset : offset + 3 * 2 * 4 * 128 * 64].view(3, 2, 4, 128, 64).unbind(0)
        expected = attention_forward(q, k, v, None, None, 0, 0.125, 0.0, None, False)[0]
        torch.testing.assert_close(forward(q, k, v, None, None, 0, 0.125, 0.0, None, False)[0], expected)


@pytest.mark.gpu
def test_bounds_of_a_mask_serve_every_layer() -> None:
    bounds, forward = RecordedCall(mask_bounds), RecordedCall(attention_forward)
    mask = torch.ones(1024, 1024, device="cuda", dtype=torch.bool).tril()
    for _ in range(3):
        q, k, v = tensors(1024)
        (found,) = bounds(mask, 1024, 1024, False)
        out, _ = forward(q, k, v, mask, None, None, 0.125, 0.0, None, True, None, found, True)
        expected, _ = attention_forward(q, k, v, None, None, 0, 0.125)
        torch.testing.assert_close(out, expected, rtol=0, atol=0)
        assert out.transpose(1, 2).is_contiguous()
    assert all(recording is not None for recording in (*bounds._recordings.values(), *forward._recordings.values()))


@pytest.mark.gpu
def test_other_parts_of_other_memory_are_read_where_they_are() -> None:
    forward, fixed = RecordedCall(attention_forward), FixedCall(attention_forward)
    (q, k, v), (q2, k2, v2) = tensors(256), tensors(256)
    for given in ((q, k, v), (q, v, k), (q2, k, v2), (q, q, q), (k2, q, v), (k, k, k), (q, k2, v2)):
        expected, _ = attention_forward(*given, None, None, 0, 0.125, 0.0, None, False)
        for call in (forward, fixed):
            found, _ = call(*given, None, None, 0, 0.125, 0.0, None, False)
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
