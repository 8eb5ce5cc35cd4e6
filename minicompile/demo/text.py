"""Real text that every machine has: the source of Python's standard library, as a tensor of byte tokens."""

from __future__ import annotations

import pathlib
import sysconfig

import torch


def standard_library_text(limit: int = 1_000_000) -> str:
    """The sources of the standard library's top-level modules, one after the other, up to `limit` characters."""
    pieces: list[str] = []
    length = 0
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        pieces.append(text)
        length += len(text)
        if length >= limit:
            break
    return "".join(pieces)[:limit]


def encode(text: str) -> torch.Tensor:
    """Characters to tokens; what is not ASCII becomes a question mark."""
    return torch.frombuffer(bytearray(text.encode("ascii", errors="replace")), dtype=torch.uint8).long()


def decode(tokens: torch.Tensor) -> str:
    """Tokens to text; control characters other than line ends become a dot."""
    return "".join(chr(t) if t >= 32 or t == 10 else "." for t in tokens.tolist())


def batches(
    data: torch.Tensor, batch: int, context: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """A random batch of windows of the text and the same windows one token later."""
    starts = torch.randint(len(data) - context - 1, (batch,), generator=generator)
    windows = data[starts[:, None] + torch.arange(context + 1)]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
