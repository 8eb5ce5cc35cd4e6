"""The generated code of a compiled function, as a mapping that prints as one readable listing."""

from __future__ import annotations

from collections.abc import Iterable


class Sources(dict[str, str]):
    """File name to text, in the order of compilation; `print` shows every file under its name."""

    @classmethod
    def collect(cls, files: Iterable[tuple[str, str]]) -> Sources:
        """Number names that occur more than once, so that no file hides another."""
        collected = cls()
        for name, text in files:
            stem, dot, suffix = name.rpartition(".")
            unique, number = name, 1
            while unique in collected:
                number += 1
                unique = f"{stem}_{number}{dot}{suffix}"
            collected[unique] = text
        return collected

    def __str__(self) -> str:
        return "\n".join(f"# ---- {name} ----\n{text}" for name, text in self.items())
