"""What `torch.autocast` blocks set, and how many are open.

PyTorch forgets the casts of parameters where the last block is left: counted wrong, they outlive a step of training. This
module must not know who enters the blocks.
"""

from typing import Any

import torch

KINDS = ("cpu", "cuda")


def settings() -> tuple[Any, ...]:
    """For each kind of device, whether there are casts and to which dtype; and whether those of parameters are kept."""
    kinds = ((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in KINDS)
    return *kinds, torch.is_autocast_cache_enabled()


def open_blocks() -> int:
    """The number of blocks that are open."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def restore(before: tuple[Any, ...], blocks: int) -> None:
    """Set what was set before, with so many blocks open."""
    *kinds, keeps = before
    for kind, (enabled, dtype) in zip(KINDS, kinds, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(keeps)
    change = blocks - open_blocks()
    for _ in range(abs(change)):
        torch.autocast_increment_nesting() if change > 0 else torch.autocast_decrement_nesting()
    if change < 0 and not blocks:
        torch.clear_autocast_cache()
