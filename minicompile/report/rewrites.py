"""Graph breaks whose rewrite is mechanical, as patches that were tried: captured again, and compared with the original.

A patch changes one statement of the user's source. It is tried by giving the user's function the changed code for a
moment. This module must not propose what it has not seen work.
"""

from __future__ import annotations

import ast
import copy
import difflib
import gc
import linecache
import textwrap
import types
from collections.abc import Callable
from typing import Any

import torch

from minicompile.errors import Location
from minicompile.report.records import Patch
from minicompile.report.sandbox import Sandbox
from minicompile.report.watch import replaced


def patch(kind: str, place: Location, sandbox: Sandbox, tools: Any) -> Patch | None:
    """The patch for a break of `kind` at `place`, tried; `None` where no rewrite is mechanical."""
    lines = linecache.getlines(place.file)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return None
    found = statement_at(tree, place.line) if lines else None
    if found is not None and lines[found[0][found[1]].lineno - 1][: found[0][found[1]].col_offset].strip():
        return None  # something else stands before it in its line
    replacements = [rule(*found) for rule in RULES.get(kind, ())] if found is not None else []
    patches = [rewritten(replacement, lines, place, sandbox, tools) for replacement in replacements if replacement is not None]
    return next((each for each in patches if each.verified), patches[0] if patches else None)


def rewritten(replacement: Replacement, lines: list[str], place: Location, sandbox: Sandbox, tools: Any) -> Patch:
    """The patch that makes one replacement, tried."""
    statements, text, note = replacement
    first, last = statements[0].lineno, statements[-1].end_lineno or statements[-1].lineno
    text = text.replace(ast.unparse(statements[0]), "".join(lines[first - 1 : last]).strip())  # in the user's own style
    indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
    changed = [*lines[: first - 1], textwrap.indent(text, indent) + "\n", *lines[last:]]
    after = "".join(changed)
    diff = "".join(difflib.unified_diff(lines, after.splitlines(keepends=True), place.file, place.file))
    verified, trouble = tried(after, place, sandbox, tools)
    return Patch(diff.rstrip(), verified, "; ".join(filter(None, (note, trouble))))


Found = tuple[list[ast.stmt], int]
Replacement = tuple[list[ast.stmt], str, str]
"""The statements to be replaced, the text in their place, and what else changes."""


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


def branch_to_where(block: list[ast.stmt], place: int) -> Replacement | None:
    """`if tensor: x = a else: x = b` (or two returns, or `a if tensor else b`) becomes `x = torch.where(tensor, a, b)`."""
    branch = block[place]
    if isinstance(branch, (ast.Assign, ast.Return)) and isinstance(branch.value, ast.IfExp):
        target, _ = parts(branch)
        choice = branch.value
        return [branch], where(target, choice.test, ast.unparse(choice.body), ast.unparse(choice.orelse)), ""
    if not isinstance(branch, ast.If) or len(branch.body) != 1 or len(branch.orelse) > 1:
        return None
    target, taken = parts(branch.body[0])
    replaced: list[ast.stmt] = [branch]
    other = branch.orelse
    if target == "return" and not other and place + 1 < len(block):
        replaced, other = block[place : place + 2], block[place + 1 : place + 2]
    other_target, left = parts(other[0]) if other else (target, target.removesuffix(" ="))
    if not target or target != other_target or (target == "return" and not other):
        return None
    return replaced, where(target, branch.test, taken, left), ""


def parts(statement: ast.stmt) -> tuple[str, str]:
    """`x =` or `return`, and the value after it (`x += a` sets x to x + a); empty for other statements."""
    if isinstance(statement, ast.Return) and statement.value is not None:
        return "return", ast.unparse(statement.value)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return f"{statement.targets[0].id} =", ast.unparse(statement.value)
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        changed = ast.BinOp(ast.Name(statement.target.id, ast.Load()), statement.op, statement.value)
        return f"{statement.target.id} =", ast.unparse(changed)
    return "", ""


def where(target: str, condition: ast.expr, one: str, other: str) -> str:
    """`x = torch.where(condition, one, other)`."""
    return f"{target} torch.where({ast.unparse(condition)}, {one}, {other})"


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
    return ([block[place]], ast.unparse(changed), "the value stays a 0-d tensor") if remover.changed else None


def print_guarded(block: list[ast.stmt], place: int) -> Replacement | None:
    """A statement that only prints or logs runs in eager only."""
    statement = block[place]
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return None
    text = f"if not torch.compiler.is_compiling():\n    {ast.unparse(statement)}"
    return [statement], text, "the line runs only outside of compiled code"


RULES: dict[str, tuple[Callable[[list[ast.stmt], int], Replacement | None], ...]] = {
    "branch on a tensor": (branch_to_where,),
    "tensor value": (item_removed, print_guarded),
    "input or output": (print_guarded,),
}


def tried(text: str, place: Location, sandbox: Sandbox, tools: Any) -> tuple[bool, str]:
    """Whether the changed source captures without this break and gives what the original gives."""
    function = function_at(place)
    code = changed_code(text, place, function) if function is not None else None
    if function is None or code is None:
        return False, "not tried: its function object was not found"
    try:
        expected = sandbox.once(sandbox.target)
        with replaced(function, "__code__", code):
            compiled = tools.compile(sandbox.target)
            found = sandbox.once(compiled)
            breaks = tools.internals(compiled).records.graph_breaks
            left = [r for r in breaks if any((p.file, p.line) == (place.file, place.line) for p in r.stack)]
    except Exception as failure:  # the changed function is the user's, and may raise anything
        return False, f"fails when run: {type(failure).__name__}: {str(failure).splitlines()[0][:120]}"
    if left:
        return False, f"a break is left: {left[0].reason}"
    try:
        torch.testing.assert_close(found, expected, equal_nan=True, check_dtype=True)
    except AssertionError as difference:
        return False, f"the outputs differ: {str(difference).splitlines()[0]}"
    return True, ""


def function_at(place: Location) -> types.FunctionType | None:
    """The living function whose code a line belongs to, not one that resumes it and has some of its lines."""
    found: list[tuple[int, types.FunctionType]] = []
    for candidate in gc.get_objects():
        if type(candidate) is types.FunctionType and candidate.__code__.co_filename == place.file:
            lines = {line for _, _, line in candidate.__code__.co_lines() if line}
            if candidate.__code__.co_name == place.function and lines and min(lines) <= place.line <= max(lines):
                found.append((len(lines), candidate))
    return max(found, key=lambda item: item[0])[1] if found else None


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
