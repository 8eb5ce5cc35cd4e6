"""What the launches of this package ask of the chip that they plan for; tests answer for one where there is none.

This module must not launch anything.
"""

import torch


def holds(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies on a GPU, and not where Triton's interpreter runs the kernels."""
    return tensor.device.type != "cpu"


def processors(tensor: torch.Tensor) -> int:
    """How many programs the GPU of a tensor runs at once; 1 where the interpreter does, one after the other."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if holds(tensor) else 1
