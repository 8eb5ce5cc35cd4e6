"""Dumps go to numbered folders, cost nothing when off, and never fail a compile."""

from __future__ import annotations

import pathlib

import pytest

from minicompile.report.artifacts import ArtifactFolder
from minicompile.report.stages import numbered


def test_folders_are_numbered_and_named_after_the_function(tmp_path: pathlib.Path) -> None:
    for name in ("gelu", "<lambda>", "forward"):
        ArtifactFolder.create(str(tmp_path / "dumps"), name).write("captured_graph.py", lambda: "x = 1")
    assert sorted(p.name for p in (tmp_path / "dumps").iterdir()) == ["0000_gelu", "0001_lambda", "0002_forward"]
    assert (tmp_path / "dumps" / "0000_gelu" / "captured_graph.py").read_text() == "x = 1\n"


def test_numbers_go_on_after_those_on_disk(tmp_path: pathlib.Path) -> None:
    (tmp_path / "0041_old").mkdir()
    assert ArtifactFolder.create(str(tmp_path), "new").path == tmp_path / "0042_new"


@pytest.mark.parametrize("directory", [None, ""])
def test_nothing_is_printed_when_dumping_is_off(directory: str | None) -> None:
    def text() -> str:
        raise AssertionError("must not be called")

    ArtifactFolder.create(directory, "gelu").write("a.txt", text)


def test_a_failing_printer_becomes_the_content(tmp_path: pathlib.Path) -> None:
    folder = ArtifactFolder.create(str(tmp_path), "gelu")
    folder.write("a.txt", lambda: str(1 // 0))
    assert "ZeroDivisionError" in (folder.path / "a.txt").read_text()


def test_a_place_that_cannot_be_written_is_warned_about(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="cannot write dumps"):
        folder = ArtifactFolder.create(str(tmp_path / "file"), "gelu")
    folder.write("a.txt", lambda: "never written")


def test_sources_keep_files_of_the_same_name_apart() -> None:
    sources = numbered([("a.py", "first"), ("b.py", "other"), ("a.py", "second")])
    assert list(sources) == ["a.py", "b.py", "a_2.py"]
    assert "# ---- a_2.py ----\nsecond" in str(sources)
