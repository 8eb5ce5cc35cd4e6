"""The rules of the code base as functions from a source tree to a list of violations.

Nothing here imports the library: everything is read from the syntax trees, so that a broken module is still judged.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import io
import pathlib
import tokenize
from collections.abc import Callable, Iterable, Iterator

ROOT = "minicompile"
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 80
MAX_KERNEL_LINES = 150
MAX_TOTAL_LINES = 20_000
"""The size promised."""
MAX_LINES_NOW = 32_360
"""The size reached, rounded up: it may only go down, with `docs/limits.md`, until it meets the one promised."""
APPLICATIONS = ("demo", "bench")
MAX_CONFIG_FIELDS = 20
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}

STAGE = {"ir", "gpu", "config", "errors"}
STAGES = {"capture", "graph", "lowering", "scheduling", "codegen", "runtime"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "gpu": set(),
    "ir": {"errors"},
    "kernels": {"errors", "gpu"},
    "capture": STAGE,
    "graph": STAGE,
    "lowering": STAGE,
    "scheduling": STAGE,
    "codegen": STAGE | {"kernels"},
    "runtime": STAGE | {"kernels"},
    "report": STAGE | {"kernels"},
    "compiler": STAGE | STAGES | {"report", "kernels"},
    "compiled_module": STAGE,
    "api": STAGE | {"capture", "compiler", "compiled_module", "report", "runtime"},
    "cli": {"config", "errors", "demo", "bench", "explain_command", "runtime", ROOT},
    "explain_command": {ROOT},
    "demo": {"config", "errors", "bench", ROOT},
    "bench": {"capture", "config", "errors", "report", ROOT},
    "__main__": {"cli"},
    "__init__": {"api", "compiled_module", "config", "errors", "report"},
}
"""Package (or top-level module) to the packages it may import besides itself; `minicompile` is the public interface."""


@dataclasses.dataclass(frozen=True)
class Module:
    """One Python file of the tree, parsed."""

    name: str
    path: pathlib.Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The first name below the root package."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    def at(self, node: ast.AST | int) -> str:
        """`path:line`, for messages."""
        line = node if isinstance(node, int) else getattr(node, "lineno", 1)
        return f"{self.path}:{line}"


@dataclasses.dataclass(frozen=True)
class Import:
    """A module of ours that another one imports; a `passage` is a package that is named only to reach a module in it."""

    target: str
    node: ast.AST
    passage: bool = False


def read_tree(folder: pathlib.Path) -> dict[str, Module]:
    """Every Python file under `folder`, which is the root package, by dotted name."""
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [ROOT, *path.relative_to(folder).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        text = path.read_text()
        name = ".".join(parts)
        modules[name] = Module(name, path.relative_to(folder.parent), text, ast.parse(text))
    return modules


def imports_of(module: Module, modules: dict[str, Module]) -> Iterator[Import]:
    """The modules of ours that `module` names in import statements: at its top, in functions, for annotations only."""
    for node in ast.walk(module.tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.name.split(".")
                is_package = module.path.name == "__init__.py"
                package = package[: len(package) - node.level + (1 if is_package else 0)]
                base = ".".join([*package, base]) if base else ".".join(package)
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base for alias in node.names]
            if base in modules and base not in names and base != module.name:
                yield Import(base, node, passage=True)
        for name in dict.fromkeys(names):
            if (name == ROOT or name.startswith(ROOT + ".")) and name != module.name:
                yield Import(name, node)


def forbidden_edges(modules: dict[str, Module]) -> Iterator[str]:
    """Imports that the table of the design does not allow."""
    for module in modules.values():
        if module.package not in ALLOWED:
            yield f"{module.at(1)}: package {module.package!r} is not in the table of allowed imports"
            continue
        for found in imports_of(module, modules):
            parts = found.target.split(".")
            target = parts[1] if len(parts) > 1 else ROOT
            if not found.passage and target != module.package and target not in ALLOWED[module.package]:
                yield f"{module.at(found.node)}: {module.package} must not import {target}"


def import_cycles(modules: dict[str, Module]) -> Iterator[str]:
    """Groups of modules that import each other, whatever for: an annotation or a call is enough to need the other to read."""
    edges = {name: {i.target for i in imports_of(module, modules)} & set(modules) for name, module in modules.items()}
    state: dict[str, str] = {}
    path: list[str] = []

    def visit(name: str) -> Iterator[str]:
        state[name] = "open"
        path.append(name)
        for target in sorted(edges[name]):
            if state.get(target) == "open":
                yield "import cycle: " + " -> ".join([*path[path.index(target) :], target])
            elif target not in state:
                yield from visit(target)
        path.pop()
        state[name] = "done"

    for name in sorted(edges):
        if name not in state:
            yield from visit(name)


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a syntax tree, nested ones included."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def unexplained_deferred_imports(modules: dict[str, Module]) -> Iterator[str]:
    """Imports inside functions with no comment on their line or on the line above."""
    for module in modules.values():
        lines = module.text.splitlines()
        seen: set[int] = set()
        for function in functions_of(module.tree):
            for node in ast.walk(function):
                if not isinstance(node, (ast.Import, ast.ImportFrom)) or node.lineno in seen:
                    continue
                seen.add(node.lineno)
                own = any("#" in line for line in lines[node.lineno - 1 : node.end_lineno])
                if not own and not is_explained_above(lines, node.lineno):
                    yield f"{module.at(node)}: import inside a function without a reason beside it"


def is_explained_above(lines: list[str], line: int) -> bool:
    """Whether a comment stands right above, other imports of the same block between them allowed."""
    above = line - 2
    while above >= 0 and lines[above].lstrip().startswith(("import ", "from ")):
        if "#" in lines[above]:
            return True
        above -= 1
    return above >= 0 and lines[above].lstrip().startswith("#")


def global_statements(modules: dict[str, Module]) -> Iterator[str]:
    """`global` statements."""
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Global):
                yield f"{module.at(node)}: global statement"


def long_files(modules: dict[str, Module]) -> Iterator[str]:
    """Files over the limit."""
    for module in modules.values():
        count = len(module.text.splitlines())
        if count > MAX_FILE_LINES:
            yield f"{module.path}: {count} lines; at most {MAX_FILE_LINES}"


def long_functions(modules: dict[str, Module]) -> Iterator[str]:
    """Functions over the limit; Triton kernels written by hand may be longer."""
    for module in modules.values():
        for function in functions_of(module.tree):
            count = (function.end_lineno or function.lineno) - function.lineno + 1
            is_kernel = module.package == "kernels" and any("jit" in ast.unparse(d) for d in function.decorator_list)
            limit = MAX_KERNEL_LINES if is_kernel else MAX_FUNCTION_LINES
            if count > limit:
                yield f"{module.at(function)}: {function.name} has {count} lines; at most {limit}"


def missing_docstrings(modules: dict[str, Module]) -> Iterator[str]:
    """Modules, public classes, functions and methods that do not say what they are.

    Exempt are methods that a documented base-class method already describes, and handlers named after what they
    handle (`LOAD_FAST`, `visit_Name`).
    """
    documented = documented_methods(modules)
    for module in modules.values():
        if module.text.strip() and not ast.get_docstring(module.tree):
            yield f"{module.at(1)}: no module docstring"
        for node in module.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and is_public(node.name):
                if not ast.get_docstring(node):
                    yield f"{module.at(node)}: {node.name} has no docstring"
                if isinstance(node, ast.ClassDef):
                    yield from undocumented_methods(module, node, documented)


def is_public(name: str) -> bool:
    """Whether a name is meant for readers outside its scope; handlers named after what they handle are not."""
    return not (name.startswith("_") or name.isupper() or name.startswith("visit_"))


def documented_methods(modules: dict[str, Module]) -> dict[str, tuple[set[str], list[str]]]:
    """Class name to its documented methods and the names of its bases."""
    found: dict[str, tuple[set[str], list[str]]] = {}
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                methods = {f.name for f in node.body if isinstance(f, ast.FunctionDef) and ast.get_docstring(f)}
                found[node.name] = (methods, [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases])
    return found


def undocumented_methods(
    module: Module, node: ast.ClassDef, documented: dict[str, tuple[set[str], list[str]]]
) -> Iterator[str]:
    """Public methods of a public class without a docstring of their own or of a base class."""
    for method in node.body:
        if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) or not is_public(method.name):
            continue
        decorators = [ast.unparse(decorator) for decorator in method.decorator_list]
        if any(d.endswith((".setter", ".deleter", "overload", "override")) for d in decorators):
            continue
        if not ast.get_docstring(method) and not is_inherited(method.name, node.name, documented):
            yield f"{module.at(method)}: {node.name}.{method.name} has no docstring"


def is_inherited(method: str, owner: str, documented: dict[str, tuple[set[str], list[str]]]) -> bool:
    """Whether a base class, however far up, documents the method."""
    pending, seen = list(documented[owner][1]), {owner}
    while pending:
        base = pending.pop()
        if base in seen or base not in documented:
            continue
        seen.add(base)
        if method in documented[base][0]:
            return True
        pending += documented[base][1]
    return False


def forbidden_file_names(modules: dict[str, Module]) -> Iterator[str]:
    """Files and folders whose name says nothing."""
    for module in modules.values():
        for part in module.name.split("."):
            if part in FORBIDDEN_NAMES:
                yield f"{module.path}: {part!r} is not a name that says what is inside"


def too_many_config_fields(modules: dict[str, Module]) -> Iterator[str]:
    """Settings beyond the limit."""
    for node in modules[f"{ROOT}.config"].tree.body if f"{ROOT}.config" in modules else ():
        if isinstance(node, ast.ClassDef) and node.name == "Config":
            count = sum(isinstance(statement, ast.AnnAssign) for statement in node.body)
            if count > MAX_CONFIG_FIELDS:
                yield f"Config has {count} fields; at most {MAX_CONFIG_FIELDS}"


def too_many_lines(folder: pathlib.Path, limit: int = MAX_TOTAL_LINES) -> Iterator[str]:
    """A library over its size in lines of code."""
    counts = lines_by_package(folder)
    if counts.total() > limit:
        packages = ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
        yield f"the library has {counts.total():,} lines of code; at most {limit:,} ({packages})"


def lines_by_package(folder: pathlib.Path) -> collections.Counter[str]:
    """Lines of code of every package; templates count whole, the applications on top of the library do not count."""
    counts: collections.Counter[str] = collections.Counter()
    for path in folder.rglob("*.py"):
        package, *inside = path.relative_to(folder).parts
        if package not in APPLICATIONS:
            counts[package if inside else "top-level modules"] += code_lines(path.read_text())
    for path in folder.rglob("*.jinja"):
        counts["templates"] += len(path.read_text().splitlines())
    return counts


def code_lines(text: str) -> int:
    """Lines with code on them: not blank, not only a comment, not part of a docstring."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            documented |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

Rule = Callable[[dict[str, Module]], Iterable[str]]
RULES: tuple[Rule, ...] = (
    forbidden_edges,
    import_cycles,
    unexplained_deferred_imports,
    global_statements,
    long_files,
    long_functions,
    missing_docstrings,
    forbidden_file_names,
    too_many_config_fields,
)
