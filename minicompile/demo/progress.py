"""A progress bar for a terminal, a line now and then for a log file."""

from __future__ import annotations

import sys
from typing import TextIO


class ProgressBar:
    """Shows how far a loop is, with a word about its state."""

    def __init__(self, total: int, label: str, stream: TextIO | None = None) -> None:
        self.total, self.label = total, label
        self.stream = stream or sys.stdout
        self._live = self.stream.isatty()
        self._next_line = 0.0

    def update(self, done: int, state: str) -> None:
        """Show that `done` of the total are finished."""
        filled = 30 * done // self.total
        line = f"{self.label} [{'#' * filled}{'.' * (30 - filled)}] {done}/{self.total}  {state}"
        if self._live:
            end = "\n" if done == self.total else ""
            print(f"\r{line:<79}", end=end, file=self.stream, flush=True)
        elif done >= self._next_line or done == self.total:
            print(line, file=self.stream, flush=True)
            self._next_line = done + self.total / 5
