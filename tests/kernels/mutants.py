"""Known-wrong twins: a module again, with one line of its source changed. The checks of a kernel must notice each."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def mutant_of(module: ModuleType, line: str, wrong: str, folder: Path) -> ModuleType:
    """The module with `line` changed to `wrong` wherever it stands; its source is kept in `folder`."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text()
    assert line in source, "the twin no longer matches the kernel's source"
    target = folder / "mutant.py"
    target.write_text(source.replace(line, wrong))
    spec = importlib.util.spec_from_file_location(f"mutant_{abs(hash((line, wrong)))}", target)
    assert spec is not None and spec.loader is not None
    mutant = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutant)
    return mutant
