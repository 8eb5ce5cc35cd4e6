"""What blocks of `torch.autocast` and of `torch.nn.attention.sdpa_kernel` set, and how many of the former are open.

PyTorch forgets the casts of parameters where the last block is left: counted wrong, they outlive a step of training. This
module must not know who enters the blocks.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

KINDS = ("cpu", "cuda", "xpu")
ATTENTION_KERNELS = ("cudnn", "flash", "mem_efficient", "math", "overrideable")
ASK_ATTENTION = tuple(getattr(torch._C, f"_get_{kernel}_sdp_enabled") for kernel in ATTENTION_KERNELS)
SET_ATTENTION = tuple(getattr(torch._C, f"_set_sdp_use_{kernel}") for kernel in ATTENTION_KERNELS)


def settings() -> tuple[Any, ...]:
    """For each kind of device, whether there are casts and to which dtype; whether those of parameters are kept; and which
    of PyTorch's kernels for attention are allowed."""
    kinds = ((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in KINDS)
    return *kinds, torch.is_autocast_cache_enabled(), tuple(ask() for ask in ASK_ATTENTION)


def open_blocks() -> int:
    """The number of blocks that are open."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def restore(before: tuple[Any, ...], blocks: int) -> None:
    """Set what was set before, with so many blocks open."""
    *kinds, keeps, allowed = before
    for kind, (enabled, dtype) in zip(KINDS, kinds, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(keeps)
    for change_to, value in zip(SET_ATTENTION, allowed, strict=True):
        change_to(value)
    change = blocks - open_blocks()
    for _ in range(abs(change)):
        torch.autocast_increment_nesting() if change > 0 else torch.autocast_decrement_nesting()
    if change < 0 and not blocks:
        torch.clear_autocast_cache()


@contextlib.contextmanager
def as_before(before: tuple[Any, ...], blocks: int) -> Iterator[None]:
    """What was set before holds, and afterwards again what holds now."""
    now = settings(), open_blocks()
    restore(before, blocks)
    try:
        yield
    finally:
        restore(*now)
