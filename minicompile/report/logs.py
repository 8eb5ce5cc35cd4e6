"""Log lines by topic, switched on with `MINICOMPILE_LOGS=topic,topic`.

Lines go to the standard logger `minicompile.TOPIC`, or to standard error when the program has configured no logging.
This module must not compute anything: it prints records that the stages left.
"""

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from minicompile.errors import InvalidOption
from minicompile.ir.printer import captured_text, guards_text, partitioned_text, schedule_text
from minicompile.report.collect import fusions_of

VARIABLE = "MINICOMPILE_LOGS"

TOPICS = {
    "graph_breaks": "where capture cut a function, why, and a rewrite where one is known",
    "recompiles": "which guard failed, and what the new variant was compiled for",
    "guards": "every condition a compiled variant depends on",
    "graph_code": "the captured graph, operations as the user wrote them",
    "aot_graphs": "forward and backward as ATen operators, and what is saved between them",
    "fusion": "which operations share a kernel, and each fusion refused with its reason",
    "schedule": "kernels in order with their loops, tiles and memory",
    "kernel_code": "the generated Triton kernels alone",
    "output_code": "the generated Triton and host code",
    "help": "this list",
}


def enabled_topics() -> frozenset[str]:
    """The topics named by the environment; a name that does not exist raises `InvalidOption`."""
    names = [name.strip().lstrip("+") for name in os.environ.get(VARIABLE, "").split(",")]
    for name in filter(None, names):
        if name not in TOPICS and name != "all":
            raise InvalidOption(name, "", tuple(TOPICS), unknown=True, kind=f"{VARIABLE} topic")
    return frozenset(TOPICS.keys() - {"help"}) if "all" in names else frozenset(filter(None, names))


def help_text() -> str:
    """The topics and what each one prints."""
    width = max(map(len, TOPICS))
    lines = [f"{VARIABLE} takes `all`, or a comma-separated list of:"]
    return "\n".join([*lines, *(f"  {name:<{width}}  {meaning}" for name, meaning in TOPICS.items())])


def emit(topic: str, text: str) -> None:
    """Write one entry of a topic."""
    logger = logging.getLogger(f"minicompile.{topic}")
    if logger.hasHandlers():
        logger.info(text)
    else:
        print(f"[minicompile.{topic}] {text}", file=sys.stderr, flush=True)


class LoggedRecords(list[Any]):
    """A list of records that writes each one to a topic as it is appended."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.topic = topic

    def append(self, record: Any) -> None:
        """Keep the record and write it."""
        super().append(record)
        emit(self.topic, str(record))


def emit_part(topics: frozenset[str], graph: Any, half: str, part: Any) -> None:
    """Write what the enabled topics have to say about one compiled half."""
    captured, name = graph.captured, f"{graph.captured.name} {half}"
    texts: dict[str, Callable[[], str]] = {}
    if half == "forward":
        texts["guards"] = lambda: f"{captured.name}: {len(captured.guards)} guards\n{guards_text(captured)}"
        texts["graph_code"] = lambda: captured_text(captured)
        texts["aot_graphs"] = lambda: partitioned_text(graph.partitioned)
    if part.schedule is not None:
        texts["fusion"] = lambda: "\n    ".join([name, *map(str, fusions_of(half, part.schedule))])
        texts["schedule"] = lambda: schedule_text(part.schedule)
    if part.program is not None:
        texts["kernel_code"] = lambda: "\n\n\n".join([name, *(kernel.text for kernel in part.program.kernels)])
        texts["output_code"] = lambda: f"{part.path or part.program.name}\n{part.program.text}"
    for topic, text in texts.items():
        if topic in topics:
            emit(topic, text())

