"""Graph breaks whose rewrite is mechanical, as patches that were tried: captured again, and compared with the original.

A patch changes one statement of the user's source. It is tried by giving the user's function the changed code for a
moment. This module must not propose what it has not seen work.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import difflib
import gc
import linecache
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from minicompile.errors import Location
from minicompile.report.records import Patch
from minicompile.report.sandbox import Sandbox

QUIET = "the line runs only outside of compiled code"


def patch(kind: str, place: Location, sandbox: Sandbox, tools: Any) -> Patch | None:
    """The patch for a break of `kind` at `place`, tried; `None` where no rewrite is mechanical."""
    lines = linecache.getlines(place.file)
    rule = RULES.get(kind)
    if rule is None or not lines:
        return None
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return None
    found = statement_at(tree, place.line)
    replacement = rule(*found) if found is not None else None
    if found is None or replacement is None:
        return None
    first, last = span(replacement[0])
    indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
    text = textwrap.indent(ast.unparse(ast.fix_missing_locations(replacement[1])), indent)
    changed = [*lines[: first - 1], *(line + "\n" for line in text.splitlines()), *lines[last:]]
    diff = "".join(difflib.unified_diff(lines, changed, place.file, place.file))
    verified, note = tried("".join(changed), place, sandbox, tools)
    return Patch(diff, verified, "; ".join(filter(None, (replacement[2], note))))


Found = tuple[list[ast.stmt], int]
Replacement = tuple[list[ast.stmt], ast.Module, str]


def statement_at(tree: ast.Module, line: int) -> Found | None:
    """The innermost block and position of the statement that a line belongs to."""
    best: Found | None = None
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block: Any = getattr(node, name, None)
            for place, statement in enumerate(block if isinstance(block, list) else ()):
                if isinstance(statement, ast.stmt) and statement.lineno <= line <= (statement.end_lineno or 0):
                    if best is None or statement.lineno >= best[0][best[1]].lineno:
                        best = block, place
    return best


def span(statements: list[ast.stmt]) -> tuple[int, int]:
    """First and last line."""
    return statements[0].lineno, statements[-1].end_lineno or statements[-1].lineno


def branch_to_where(block: list[ast.stmt], place: int) -> Replacement | None:
    """`if tensor: x = a else: x = b` (or two returns) becomes `x = torch.where(tensor, a, b)`."""
    test = block[place]
    if isinstance(test, ast.Assign) and isinstance(test.value, ast.IfExp):
        choice = test.value
        assigned = ast.Assign(test.targets, where(choice.test, choice.body, choice.orelse), lineno=test.lineno)
        return [test], ast.Module([assigned], []), ""
    if isinstance(test, ast.Return) and isinstance(test.value, ast.IfExp):
        choice = test.value
        returned = ast.Return(where(choice.test, choice.body, choice.orelse))
        return [test], ast.Module([returned], []), ""
    if not isinstance(test, ast.If) or len(test.body) != 1:
        return None
    replaced: list[ast.stmt] = [test]
    other = test.orelse
    if not other and isinstance(test.body[0], ast.Return) and place + 1 < len(block):
        replaced, other = [test, block[place + 1]], [block[place + 1]]
    taken = test.body[0]
    if isinstance(taken, ast.Return) and len(other) == 1 and isinstance(other[0], ast.Return):
        if taken.value is not None and other[0].value is not None:
            return replaced, ast.Module([ast.Return(where(test.test, taken.value, other[0].value))], []), ""
    name, value = assigned_value(taken)
    if name is None or value is None:
        return None
    if not other:
        return [test], ast.Module([assign(name, where(test.test, value, load(name)))], []), ""
    other_name, other_value = assigned_value(other[0]) if len(other) == 1 else (None, None)
    if other_name != name or other_value is None:
        return None
    return [test], ast.Module([assign(name, where(test.test, value, other_value))], []), ""


def where(condition: ast.expr, one: ast.expr, other: ast.expr) -> ast.expr:
    """`torch.where(condition, one, other)`."""
    function = ast.Attribute(ast.Name("torch", ast.Load()), "where", ast.Load())
    return ast.Call(function, [condition, one, other], [])


def load(name: str) -> ast.expr:
    """A variable."""
    return ast.Name(name, ast.Load())


def assign(name: str, value: ast.expr) -> ast.stmt:
    """`name = value`."""
    return ast.Assign([ast.Name(name, ast.Store())], value, lineno=1)


def assigned_value(statement: ast.stmt) -> tuple[str | None, ast.expr | None]:
    """The one variable that a statement sets, and to what (`x += a` sets x to x + a)."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id, statement.value
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id, ast.BinOp(load(statement.target.id), statement.op, statement.value)
    return None, None


class WithoutItem(ast.NodeTransformer):
    """`x.item()`, `float(x)` and `int(x)` become `x`."""

    def __init__(self) -> None:
        self.changed = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """One call."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
            self.changed = True
            return node.func.value
        if isinstance(node.func, ast.Name) and node.func.id in ("float", "int", "bool") and len(node.args) == 1:
            self.changed = True
            return node.args[0]
        return node


def item_removed(block: list[ast.stmt], place: int) -> Replacement | None:
    """The value stays a 0-d tensor."""
    if isinstance(block[place], (ast.FunctionDef, ast.ClassDef, ast.For, ast.With, ast.Try, ast.While)):
        return None
    remover = WithoutItem()
    changed = remover.visit(copy.deepcopy(block[place]))
    return ([block[place]], ast.Module([changed], []), "the value stays a 0-d tensor") if remover.changed else None


def print_guarded(block: list[ast.stmt], place: int) -> Replacement | None:
    """A statement that only prints or logs runs in eager only."""
    statement = block[place]
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return None
    test = ast.parse("not torch.compiler.is_compiling()", mode="eval").body
    return [statement], ast.Module([ast.If(test, [statement], [])], []), QUIET


RULES: dict[str, Callable[[list[ast.stmt], int], Replacement | None]] = {
    "branch on a tensor": branch_to_where,
    "tensor value": item_removed,
    "input or output": print_guarded,
}


def tried(text: str, place: Location, sandbox: Sandbox, tools: Any) -> tuple[bool, str]:
    """Whether the changed source captures without this break and gives what the original gives."""
    function = function_at(place)
    code = changed_code(text, place, function) if function is not None else None
    if function is None or code is None:
        return False, "not tried: its function object was not found"
    try:
        expected = sandbox.once(sandbox.target)
        with swapped(function, code):
            compiled = tools.compile(sandbox.target)
            found = sandbox.once(compiled)
            breaks = tools.internals(compiled).records.graph_breaks
            left = [r for r in breaks if any((p.file, p.line) == (place.file, place.line) for p in r.stack)]
    except Exception as failure:
        return False, f"fails when run: {type(failure).__name__}: {str(failure).splitlines()[0][:120]}"
    if left:
        return False, f"a break is left: {left[0].reason}"
    try:
        torch.testing.assert_close(found, expected, equal_nan=True, check_dtype=True)
    except AssertionError as difference:
        return False, f"the outputs differ: {str(difference).splitlines()[0]}"
    return True, ""


def function_at(place: Location) -> types.FunctionType | None:
    """The living function whose code a line belongs to."""
    for candidate in gc.get_objects():
        if type(candidate) is types.FunctionType and candidate.__code__.co_filename == place.file:
            code = candidate.__code__
            lines = [line for _, _, line in code.co_lines() if line]
            if code.co_name == place.function and lines and min(lines) <= place.line <= max(lines):
                return candidate
    return None


def changed_code(text: str, place: Location, function: types.FunctionType) -> types.CodeType | None:
    """The code object of the same function in the changed source."""
    pending = [compile(text, place.file, "exec", dont_inherit=True)]
    while pending:
        code = pending.pop()
        same = code.co_qualname == function.__code__.co_qualname and code.co_freevars == function.__code__.co_freevars
        if same and code.co_firstlineno == function.__code__.co_firstlineno:
            return code
        pending += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return None


@contextlib.contextmanager
def swapped(function: types.FunctionType, code: types.CodeType) -> Iterator[None]:
    """Give a function other code for a while."""
    before = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before
