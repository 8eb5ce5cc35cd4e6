"""`MINICOMPILE_LOGS` prints the topics it names and refuses those it does not know."""

from __future__ import annotations

import logging

import pytest
import torch

import minicompile
from minicompile.errors import InvalidOption, Location
from minicompile.ir.graph import GraphBreak
from minicompile.report import logs


def test_topics_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICOMPILE_LOGS", "guards, +fusion,")
    assert logs.enabled_topics() == {"guards", "fusion"}
    monkeypatch.setenv("MINICOMPILE_LOGS", "")
    assert logs.enabled_topics() == frozenset()


def test_an_unknown_topic_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICOMPILE_LOGS", "recompile")
    with pytest.raises(InvalidOption, match="'recompiles'"):
        minicompile.compile(lambda x: x)


def test_all_is_every_topic_but_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICOMPILE_LOGS", "all")
    assert logs.enabled_topics() == set(logs.TOPICS) - {"help"}


def test_help_lists_every_topic() -> None:
    assert all(topic in logs.help_text() for topic in logs.TOPICS)


def test_a_graph_break_names_line_and_rewrite() -> None:
    record = GraphBreak(
        "call", "print cannot be captured", "remove it", (Location("model.py", 7, "forward", "print(x)"),)
    )
    text = str(record)
    assert "model.py:7 in forward" in text and "what to do: remove it" in text


def test_lines_go_to_a_configured_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="minicompile"):
        logs.emit("guards", "one line")
    assert "one line" in caplog.text


def test_every_topic_prints_for_a_compiled_function(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MINICOMPILE_LOGS", "graph_breaks,recompiles,guards,fusion,output_code")

    def breaks(x, flag):
        y = x * 2
        print("between")
        return y.softmax(-1) if flag else y

    with caplog.at_level(logging.INFO, logger="minicompile"):
        compiled = minicompile.compile(breaks)
        compiled(torch.ones(2, 3), True)
        compiled(torch.ones(2, 3), False)
    topics = {record.name for record in caplog.records}
    assert topics == {f"minicompile.{t}" for t in ("graph_breaks", "recompiles", "guards", "fusion", "output_code")}
    assert "test_logs.py" in caplog.text and "@triton.jit" in caplog.text
