"""Whether the stages plan, and kernels are launched, for a GPU: asked in one place, so that tests answer where there is none.

Who imitates what eager's kernels do on a device asks the device itself. This module must not launch anything.
"""

from typing import Any

import torch


def holds(value: Any) -> bool:
    """Whether what has a device (a tensor, fake or of the loop IR, or a builder's graph) lies on a GPU.

    On the CPU Triton's interpreter runs the kernels.
    """
    return bool(value.device.type != "cpu")


def converts_float8(device: torch.device) -> bool:
    """Whether kernels there convert to and from 8-bit floats: the interpreter's, and NVIDIA's from compute capability 8.9 on."""
    if device.type == "cpu" or not torch.cuda.is_available():
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 9)


def processors(tensor: torch.Tensor) -> int:
    """How many programs the GPU of a tensor runs at once; 1 where the interpreter does, one after the other."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if holds(tensor) else 1
