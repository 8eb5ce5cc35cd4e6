"""One numbered folder per compile, with what every stage produced as text or Python files.

Switched on by `MINICOMPILE_DUMP=DIR` or the setting `dump_directory`. Writing never fails a compile: a folder that
cannot be written is warned about once. This module must not know the stages: it takes names and texts.
"""

from __future__ import annotations

import pathlib
import re
import warnings
from collections.abc import Callable


class ArtifactFolder:
    """The dump folder of one compile; one without a place ignores what is written to it.

    Attributes:
        path: the folder, or `None` when dumping is off.
    """

    def __init__(self, path: pathlib.Path | None) -> None:
        self.path = path

    @classmethod
    def create(cls, directory: str | None, name: str) -> ArtifactFolder:
        """Make the next numbered folder `0007_name` in `directory`; nothing is made when `directory` is empty."""
        if not directory:
            return cls(None)
        base = pathlib.Path(directory)
        readable = re.sub(r"\W+", "_", name).strip("_") or "graph"
        try:
            base.mkdir(parents=True, exist_ok=True)
            number = 1 + max((int(entry.name[:4]) for entry in base.glob("[0-9][0-9][0-9][0-9]_*")), default=-1)
            while True:
                try:
                    path = base / f"{number:04}_{readable}"
                    path.mkdir()
                    return cls(path)
                except FileExistsError:  # another thread or process took the number
                    number += 1
        except OSError as failure:
            warnings.warn(f"cannot write dumps to {directory}: {failure}", stacklevel=2)
            return cls(None)

    def write(self, name: str, text: Callable[[], str]) -> None:
        """Write one file; `text` is only called when dumping is on, and its failure becomes the file's content."""
        if self.path is None:
            return
        try:
            content = text()
        except Exception as failure:  # a printer's fault must not fail a compile
            content = f"# could not be printed: {type(failure).__name__}: {failure}\n"
        try:
            (self.path / name).write_text(content if content.endswith("\n") else content + "\n")
        except OSError as failure:
            warnings.warn(f"cannot write {self.path / name}: {failure}", stacklevel=2)
            self.path = None
