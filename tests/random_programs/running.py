"""Runs random programs plain and compiled, and shrinks what differs. Must not know how programs are written."""

from __future__ import annotations

import copy
import linecache
from collections.abc import Callable, Iterator
from typing import Any

from tests.conformance.catalogue import Program
from tests.conformance.harness import Outcome, compare, precise_run, run
from tests.random_programs import arguments, setting
from tests.random_programs.writer import Block, Writer, source

REFUSALS = ("RuntimeError", "IndexError", "NotImplementedError", "TypeError", "ValueError")


def program_of(statements: list[Any], seed: int, vocabulary: str) -> Program:
    """The statements as a program of the conformance suite."""
    text = source(statements)
    file = f"<random program {seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    code = compile(text, file, "exec")

    def factory() -> tuple[Any, ...]:
        namespace: dict[str, Any] = {"__name__": setting.__name__}
        exec(code, namespace)
        function, watched = namespace["make"]()
        return function, arguments.calls(seed, vocabulary == "language", namespace["Box"]), watched

    return Program(f"random{seed}", "random", factory)


def differences(statements: list[Any], seed: int, vocabulary: str, compiler: Callable[[Any], Any]) -> list[str]:
    """What differs between the plain and the compiled program."""
    program = program_of(statements, seed, vocabulary)
    try:
        expected = run(program, lambda function: function)
        if vocabulary == "operators":
            expected = expected[: until_an_operator_fails(expected)]
        actual = run(program, compiler)[: len(expected)]
        found = list(compare(expected, actual))
        if found and any("off by" in sentence for sentence in found):
            found = list(compare(expected, actual, (precise_run(program) or [])[: len(expected)] or None))
    except Exception as error:
        return [f"the compiler stopped: {type(error).__name__}: {str(error)[:600]}"]
    return found


def until_an_operator_fails(outcomes: list[Outcome]) -> int:
    """How many calls come before one that torch itself refuses: what a graph did before its error is not promised."""
    refused = [
        number
        for number, outcome in enumerate(outcomes)
        if outcome.exception and outcome.exception.kind.rpartition(".")[2] in REFUSALS
    ]
    return refused[0] if refused else len(outcomes)


def written(seed: int, vocabulary: str, length: int) -> list[Any]:
    """The program of a seed."""
    return Writer(seed, vocabulary).program(length)


def shrunk(statements: list[Any], fails: Callable[[list[Any]], bool]) -> list[Any]:
    """The statements without those that the failure does not need."""
    statements = copy.deepcopy(statements)
    progress = True
    while progress:
        progress = False
        for holder, index in reversed(list(places(statements))):
            if index >= len(holder):
                continue
            removed = holder[index]
            for replacement in ([], removed.body if isinstance(removed, Block) else None):
                if replacement is None:
                    continue
                holder[index : index + 1] = replacement
                try:
                    if fails(statements):
                        progress = True
                        break
                except SyntaxError:
                    pass
                holder[index : index + len(replacement)] = [removed]
    return statements


def places(statements: list[Any]) -> Iterator[tuple[list[Any], int]]:
    """Every list of statements with every position in it."""
    for index, statement in enumerate(statements):
        yield statements, index
        if isinstance(statement, Block):
            yield from places(statement.body)
