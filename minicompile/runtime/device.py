"""What the policies of earlier stages need to know of a device, read once per device.

This module must not import Triton: it answers before any kernel exists.
"""

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
        multiprocessors=found.multi_processor_count,
        l2_bytes=getattr(found, "L2_cache_size", 60 * 2**20),
        shared_bytes=getattr(found, "shared_memory_per_multiprocessor", 65 * 2**10) - 2**10,  # one kilobyte is the system's
    )
