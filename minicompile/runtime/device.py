"""What the policies of earlier stages need to know of a device, read once per device.

This module must not import Triton: it answers before any kernel exists.
"""

from __future__ import annotations

import functools

import torch

from minicompile.ir.schedule import DeviceProperties


@functools.lru_cache(maxsize=64)
def device_properties(device: torch.device) -> DeviceProperties:
    """The properties of `device`; a CPU answers with the defaults and kind `cpu`."""
    if device.type != "cuda":
        return DeviceProperties()
    found = torch.cuda.get_device_properties(device)
    return DeviceProperties(
        name=found.name,
        kind="hip" if torch.version.hip else "cuda",
        compute_capability=(found.major, found.minor),
        multiprocessors=found.multi_processor_count,
        max_threads_per_multiprocessor=found.max_threads_per_multi_processor,
        registers_per_multiprocessor=getattr(found, "regs_per_multiprocessor", 65536),
        shared_memory_per_block=getattr(found, "shared_memory_per_block_optin", 49152),
        l2_bytes=getattr(found, "L2_cache_size", 60 * 2**20),
        copy_bytes_per_second=_copy_bandwidth(found.name),
    )


def _copy_bandwidth(name: str) -> float:
    """Measured copy rates by chip, in bytes per second; an unknown chip is taken for a mid-sized one."""
    rates = {"H200": 4.2e12, "H100": 2.9e12, "A100": 1.7e12, "L40": 0.75e12, "T4": 0.26e12}
    return next((rate for chip, rate in rates.items() if chip in name), 1.0e12)
