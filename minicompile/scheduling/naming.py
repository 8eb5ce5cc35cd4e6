"""Kernel names from the user's operations: `softmax`, `add_rms_norm`. No other naming happens here."""

import functools
import re
from collections.abc import Iterable

from minicompile.ir.loops import Operation, Origin

MAXIMUM_LENGTH = 60
MAXIMUM_WORDS = 5
UNREMARKABLE = frozenset(
    "convert_element_type to_copy to view reshape expand clone unsqueeze squeeze permute transpose t full full_like "
    "copy alias detach scalar_tensor unsafe_view slice select contiguous zeros zeros_like ones ones_like empty iota "
    "arange type_as float half bfloat16 getitem fill".split()
)

NAMESPACES = frozenset("torch ops aten prims nn functional Tensor special minicompile default F".split())


@functools.lru_cache(maxsize=1 << 10)
def operator_word(operator: str) -> str:
    """The plain name of an operator: `aten._softmax.default` is `softmax`."""
    parts = [part for part in re.sub(r"\(.*", "", operator).split(".") if part not in NAMESPACES]
    word = re.sub(r"\W+", "_", parts[0] if parts else operator)
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower().strip("_")
    return word.removesuffix("_") or "kernel"


def is_called(operation: Operation, name: str) -> bool:
    """Whether an operation stems from what the user calls `name`: an operator, a variable, or a line (`model.py:12`)."""
    return any(
        name in (operator_word(origin.operator), origin.variable)
        or (origin.location is not None and f"{origin.location.file}:{origin.location.line}".endswith(name) and ":" in name)
        for origin in operation.origins
    )


def kernel_name(origins: Iterable[Origin]) -> str:
    """A short name, which other kernels may have too."""
    words = list(dict.fromkeys(operator_word(origin.operator) for origin in origins))
    telling = [word for word in words if word not in UNREMARKABLE] or words or ["copy"]
    chosen: list[str] = []
    for word in telling[-MAXIMUM_WORDS:]:
        if len("_".join([*chosen, word])) <= MAXIMUM_LENGTH - len("_kernel_9999"):
            chosen.append(word)
    base = "_".join(chosen) or telling[-1][: MAXIMUM_LENGTH - len("_kernel_9999")]
    return base if base.isidentifier() else f"op_{base}"
