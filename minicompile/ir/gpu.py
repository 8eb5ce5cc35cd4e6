"""Whether the stages plan for a GPU, asked in one place: tests answer for one where there is none.

Who imitates what eager's kernels do on a device asks the device itself.
"""

from typing import Any


def holds(value: Any) -> bool:
    """Whether what has a device (a tensor, fake or of the loop IR, or a builder's graph) lies on a GPU."""
    return bool(value.device.type != "cpu")
