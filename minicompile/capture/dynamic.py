"""Which numbers stay symbolic. Sizes and integers are constants first; those that changed become symbols.

Must not guard by itself: what torch's `ShapeEnv` assumed is turned into guards when the frame ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from minicompile.capture.source import Source

if TYPE_CHECKING:
    from minicompile.capture.tracer import Tracer


class DynamicPlan:
    """The sizes and numbers that are to be symbolic in the next capture.

    Attributes:
        policy: `True` at once, `None` from the second value on, `False` never.
        sizes: (words of the source, dimension); numbers: words of the source.
    """

    def __init__(self, policy: bool | None) -> None:
        self.policy = policy
        self.sizes: set[tuple[str, int]] = set()
        self.numbers: set[str] = set()

    def number(self, tracer: Tracer, real: Any, source: Source) -> Any:
        """The symbol for an integer from outside, or `None` if it is to be a constant."""
        return None

    def fake_tensor(self, tracer: Tracer, real: torch.Tensor, source: Source) -> tuple[Any, Any, Any]:
        """A fake tensor for `real`, with the sizes and strides to guard (`None` where they may vary)."""
        fake = tracer.graph.fake_mode.from_tensor(real, static_shapes=True)
        return fake, tuple(real.shape), tuple(real.stride())

    def expression(self, tracer: Tracer, writer: Any, value: Any) -> str:
        """Python text for a symbolic number."""
        raise TypeError("no symbolic numbers yet")
