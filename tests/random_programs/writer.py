"""Writes random programs, statement by statement; what does not work for the first call is not kept.

A place in the program is known by the variables there: the program is run in eager with a probe after each new statement. Must
not compile anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.random_programs import arguments, setting, vocabulary

FLOATS, OTHERS = arguments.FLOATS, arguments.OTHERS
LARGEST = 3_000
PROBE = "PROBE(dict(locals()))"
PREFIX = inspect.getsource(setting) + '''

def make():
    log, state = [], {"n": 0}
    calls = 0
    holder, block = Box(torch.zeros(2), torch.ones(2)), Block()

    def counter():
        nonlocal calls
        calls += 1
        return calls

    def outer(x0, x1, x2, items, table, box, n, flag):
BODY
    return outer, (log, state, holder, block, LOG, TOTALS, Box)
'''


@dataclasses.dataclass
class Block:
    """Statements under a head, with the text that follows them (an `else`, an `except`)."""

    head: list[str]
    body: list[Any]
    tail: list[str] = dataclasses.field(default_factory=list)
    depth: int = 1


def lines(statements: list[Any], indent: int) -> Iterator[str]:
    """The text of statements."""
    for statement in statements:
        if isinstance(statement, Block):
            yield from ("    " * indent + text for text in statement.head)
            yield from lines(statement.body or ["pass"], indent + statement.depth)
            yield from ("    " * indent + text for text in statement.tail)
        else:
            yield "    " * indent + statement


def source(statements: list[Any]) -> str:
    """The module's text."""
    return PREFIX.replace("BODY", "\n".join(lines(statements, 2)))


def levels(text: str) -> list[str]:
    """Lines of a template: `/` between them, one `>` for each level."""
    made = []
    for line in filter(None, re.split(r"(?<![/ ])/(?![/ ])", text)):
        depth = len(line) - len(line.lstrip(">"))
        made.append("    " * depth + line[depth:])
    return made


class Interrupted(BaseException):
    """The program takes too long."""


class Writer:
    """Makes the statements of one program.

    Attributes:
        statements: the program so far; scope: the variables at the place where it is written on.
    """

    def __init__(self, seed: int, vocabulary_name: str) -> None:
        self.rng = random.Random(seed)
        self.seed, self.language = seed, vocabulary_name == "language"
        self.names = 10
        self.statements: list[Any] = []
        self.scope: dict[str, Any] = {}

    def program(self, length: int) -> list[Any]:
        """The statements of the function's body, a `return` at the end."""
        self.scope = self.run() or {}
        for _ in range(3 * length):
            self.statement(self.statements, 0)
            if sum(1 for _ in lines(self.statements, 0)) >= length:
                break
        self.statements.append(self.result())
        return self.statements

    def run(self) -> dict[str, Any] | None:
        """Run the program; the variables at the probe (empty if it is not reached), or `None` if it raises."""
        seen: list[dict[str, Any]] = []
        marked = self.statements if any(PROBE in line for line in lines(self.statements, 0)) else [*self.statements, PROBE]
        namespace: dict[str, Any] = {"__name__": setting.__name__, "PROBE": seen.append}
        steps = 0

        def counting(frame: Any, event: str, _: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > 3_000:
                raise Interrupted
            return None if frame.f_code.co_filename != "<writing>" else counting

        try:
            code = compile(source(marked), "<writing>", "exec")
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                exec(code, namespace)
                function, _ = namespace["make"]()
                first = arguments.calls(self.seed, self.language)[0]
                sys.settrace(counting)
                try:
                    function(*first.args)
                finally:
                    sys.settrace(None)
        except (Exception, Interrupted):
            return None
        return seen[0] if seen else {}

    def keep(self, place: list[Any], made: Any) -> bool:
        """Add a statement at a place if the program still works; the scope is then the one behind it."""
        place.extend([made, PROBE])
        seen = self.run()
        place.pop()
        if seen is None or sum(value.numel() for value in seen.values() if isinstance(value, torch.Tensor)) > LARGEST:
            place.pop()
            return False
        self.scope = {**self.scope, **seen}
        return True

    def statement(self, place: list[Any], depth: int) -> None:
        """Try one random statement at the end of a place."""
        kind = self.rng.random()
        if depth < 3 and kind < (0.30 if self.language else 0.12):
            defines = self.language and depth < 2 and kind < 0.08
            return self.definition(place, depth) if defines else self.block(place, depth)
        text = self.of_the_language() if self.language else self.of_operators()
        if text is not None:
            self.keep(place, text)
        return None

    def of_the_language(self) -> str | None:
        """A statement of the vocabulary of the language."""
        kind = self.rng.random()
        if kind < 0.45:
            return self.fill(self.rng.choice(vocabulary.EFFECTS))
        table = vocabulary.NEW_OBJECTS if kind < 0.6 else vocabulary.TENSORS if kind < 0.75 else vocabulary.EXPRESSIONS
        return self.assigned(self.fill(self.rng.choice(table)), "z" if kind < 0.6 else "x")

    def of_operators(self) -> str | None:
        """A statement of the vocabulary of operators."""
        kind = self.rng.random()
        if kind < 0.30:
            table, prefix = (vocabulary.VIEWS, "") if kind < 0.18 else (vocabulary.VALUES, "")
        elif kind < 0.65:
            table, prefix = (vocabulary.EXACT, "x") if kind < 0.54 else (vocabulary.INEXACT, "y")
        else:
            return self.fill(self.rng.choice(vocabulary.WRITES if kind < 0.84 else vocabulary.PYTHON))
        return self.assigned(self.fill(self.rng.choice(table)), prefix)

    def block(self, place: list[Any], depth: int) -> None:
        """A compound statement at the end of a place."""
        heads = vocabulary.BLOCKS if self.language else vocabulary.OPERATOR_BLOCKS
        self.compound(place, depth, self.rng.choice(heads), self.rng.random() < 0.35)

    def definition(self, place: list[Any], depth: int) -> None:
        """A function of the program's own, and a call of it."""
        template = self.rng.choice(vocabulary.DEFINITIONS)
        name = self.fresh("f")
        self.compound(place, depth, template.replace("{name}", name), False)

    def compound(self, place: list[Any], depth: int, template: str, ending: bool) -> None:
        """A block from its template: head, what its body begins with, what it ends with, what follows."""
        before = dict(self.scope)
        filled = self.fill(template)
        if filled is None:
            return
        head, start, tail = [*filled.split("|", 2), "", ""][:3] if " | " not in filled else (filled, "", "")
        after: list[str] = []
        if filled.startswith(("def ", "@", "class ")):
            parts = filled.split("|")
            head, start, end, tail = parts if len(parts) == 4 else (parts[0], "", parts[1], parts[2])
            after = levels(end.replace(">", "", 1).replace("/>", "/"))
        rows = levels(head)
        nested = 1 + (len(rows[-1]) - len(rows[-1].lstrip())) // 4
        block = Block(rows, [*levels(start), *after], levels(tail.lstrip("|")), nested)
        if not self.keep(place, block):
            self.scope = before
            return
        written: list[Any] = []
        at = len(levels(start))
        block.body[at:at] = [Block([], written, [], 0)]
        inner = {name: value for name, value in zip(names_bound(rows), [torch.ones(2)] * 4, strict=False)}
        self.scope = {**inner, **before}
        if self.keep(written, "pass"):
            written.clear()
            for _ in range(self.rng.randint(1, 3)):
                self.statement(written, depth + 1)
            if ending and (text := self.fill(self.rng.choice(vocabulary.ENDINGS))):
                guard = self.fill("if {c}: ") if self.rng.random() < 0.6 else ""
                self.keep(written, f"{guard or ''}{text}")
        block.body[at : at + 1] = written
        self.scope = {**before, **(self.probed(place) or {})}

    def probed(self, place: list[Any]) -> dict[str, Any] | None:
        """The variables at the end of a place."""
        place.append(PROBE)
        seen = self.run()
        place.pop()
        return seen

    def assigned(self, expression: str | None, prefix: str) -> str | None:
        """An assignment of the expression to a new name (or, sometimes, an old one) that says whether it is exact."""
        if expression is None:
            return None
        tainted = prefix == "y" or any(word[0] == "y" and word[1:].isdigit() for word in re.findall(r"\w+", expression))
        if prefix == "x" and tainted:
            return None
        old = [name for name in self.scope if name[0] == prefix and name[1:].isdigit()] if prefix else []
        if self.language and old and self.rng.random() < 0.3:
            return f"{self.rng.choice(old)} = {expression}"
        return f"{self.fresh(prefix or ('y' if tainted else 'x'))} = {expression}"

    def result(self) -> str:
        """A nested container of some of what there is."""
        tensors = self.tensors("xy") or ["x0"]
        parts = [self.rng.choice(tensors[-8:]) for _ in range(3)]
        others = [name for name in self.scope if name[0] in "zf" and name[1:].isdigit() and not inspect.isgenerator(self.scope[name])]
        parts += [self.rng.choice([*others[-6:], "n", "items", "log", "state['n']", "x0", "x0.shape", "table", "box"]) for _ in range(3)]
        self.rng.shuffle(parts)
        return f"return ({parts[0]}, [{parts[1]}, {{'a': {parts[2]}, 'b': ({parts[3]},)}}], {parts[4]}, {parts[5]})"

    def fresh(self, prefix: str) -> str:
        """A name not used so far."""
        self.names += 1
        return f"{prefix}{self.names}"

    def tensors(self, prefixes: str, wanted: Callable[[torch.Tensor], bool] = lambda value: True) -> list[str]:
        """Names of tensors in scope."""
        return [name for name, value in self.scope.items()
                if name[0] in prefixes and name[1:].isdigit() and isinstance(value, torch.Tensor) and wanted(value)]  # fmt: skip

    def fill(self, template: str, depth: int = 0) -> str | None:
        """The template with its holes filled; `None` where nothing fits."""
        exact = "{e}" in template or "{b}" in template
        last, fresh, written, position = "x0", "", "", 0
        for hole in re.finditer(r"\{\{|\}\}|\{(\w+)\}", template):
            name = hole[1]
            if name is None:
                text: str | None = hole[0][0]
            elif name in ("e", "b", "w", "t"):
                text = last = self.tensor(name, exact) or ""
            elif name in ("e0", "w0", "t0"):
                text = last
            elif name == "new":
                text = fresh = self.fresh("x")
            elif name == "new0":
                text = fresh
            elif name in NESTED:
                text = self.fill(self.rng.choice(NESTED[name] if depth < 2 else [SIMPLE[name]]), depth + 1)
            elif name == "c":
                table = vocabulary.BRANCHES if self.language else vocabulary.CONDITIONS
                text = self.fill(self.rng.choice(table if depth < 2 else ["flag"]), depth + 1)
            else:
                text = self.literal(name, last)
            if not text:
                return None
            written, position = written + template[position : hole.start()] + text, hole.end()
        return written + template[position:]

    def tensor(self, kind: str, exact: bool) -> str | None:
        """The name of a tensor of a kind, rather a new one."""
        tests: dict[str, Callable[[torch.Tensor], bool]] = {
            "b": lambda value: not value.is_floating_point(),
            "w": lambda value: value.is_floating_point(),
        }
        names = self.tensors("x" if exact or kind in "eb" else "xy", tests.get(kind, lambda value: True))
        return self.rng.choice(names[-6:] if self.rng.random() < 0.7 else names) if names else None

    def literal(self, hole: str, last: str) -> str | None:
        """A hole that is not a tensor."""
        if hole == "d":
            dims = self.scope[last].dim() if isinstance(self.scope.get(last), torch.Tensor) else 0
            return str(self.rng.randint(-dims, dims - 1)) if dims else "0"
        if hole in OBJECTS:
            names = [name for name, value in self.scope.items() if OBJECTS[hole](name, value)]
            return self.rng.choice(names[-4:]) if names else None
        choices: dict[str, list[Any]] = {
            "s": ["0", "-1", "1:", ":-1", "::2", ":", "...", "None", "1:2", ":0", "n", "[0, 0]", "-2:", "True"],
            "dt": [*FLOATS, *OTHERS], "i": [-2, -1, 0, 0, 1, 2, 3], "n": [1, 2, 3], "f": [0.5, -1.5, 2.0, 0.25],
            "k": ["'a'", "'a'", "'b'", "'p'", "'c'"],
        }  # fmt: skip
        return str(self.rng.choice(choices[hole]))


def names_bound(rows: list[str]) -> list[str]:
    """The new names in the head of a block."""
    return re.findall(r"\bx\d\d+\b", rows[-1])


def is_program_name(name: str) -> bool:
    """Whether a variable was made by the program or is an argument."""
    return name in ("items", "table", "box", "holder") or name[1:].isdigit()


NESTED = {"T": vocabulary.TENSORS + vocabulary.EXPRESSIONS[:40], "I": vocabulary.INTEGERS, "effect": vocabulary.EFFECTS}
SIMPLE = {"T": "{t}", "I": "{n}", "effect": "counter()"}
OBJECTS: dict[str, Callable[[str, Any], bool]] = {
    "l": lambda name, value: is_program_name(name) and type(value) is list and bool(value) and all(isinstance(item, torch.Tensor) for item in value),
    "table": lambda name, value: is_program_name(name) and isinstance(value, dict) and bool(value),
    "o": lambda name, value: is_program_name(name) and type(value).__name__ in ("Box", "Crate"),
    "record": lambda name, value: is_program_name(name) and type(value).__name__ == "Record",
    "g": lambda name, value: is_program_name(name) and inspect.isgenerator(value),
    "function": lambda name, value: name == "scaled" or (is_program_name(name) and callable(value) and not isinstance(value, (type, torch.Tensor))),
}  # fmt: skip
