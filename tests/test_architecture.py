"""The library keeps the rules of its design, and the checker of those rules can fail."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

from tests import architecture_rules as rules

REPOSITORY = pathlib.Path(__file__).parent.parent
LIBRARY = REPOSITORY / "minicompile"


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_library_keeps(rule: rules.Rule) -> None:
    assert list(rule(rules.read_tree(LIBRARY))) == []


@pytest.mark.xfail(strict=True, reason="over the size promised: docs/limits.md, Structure")
def test_the_library_keeps_its_size() -> None:
    assert list(rules.too_many_lines(LIBRARY)) == []


def test_the_library_does_not_grow() -> None:
    assert list(rules.too_many_lines(LIBRARY, rules.MAX_LINES_NOW)) == []


def test_every_package_of_the_design_is_in_the_table() -> None:
    packages = {module.package for module in rules.read_tree(LIBRARY).values()}
    assert packages <= set(rules.ALLOWED)


def test_the_guide_lists_every_file() -> None:
    listed = (REPOSITORY / "docs" / "architecture.md").read_text().split("<!-- files: begin -->")[1].split("**")
    for package, names in zip(listed[1::2], listed[2::2], strict=True):
        present = {path.name for path in (LIBRARY / package).glob("*.py")} - {"__init__.py"}
        assert set(re.findall(r"^- `(\w+\.py)`", names, flags=re.MULTILINE)) == present, package


def test_no_file_names_a_place_on_one_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    place = "/wo" + "rk/"
    named = [
        name
        for name in listed.stdout.splitlines()
        if (path := REPOSITORY / name).is_file() and place in path.read_text(errors="replace")
    ]
    assert named == []


LONG_FUNCTION = '"""A module."""\n\n\ndef _long() -> None:\n' + "    print()\n" * 80

PLANTED = {
    "a stage imports another": (
        rules.forbidden_edges,
        {"lowering/lower.py": "from minicompile.capture import tracer", "capture/tracer.py": ""},
    ),
    "a stage imports the report": (rules.forbidden_edges, {"capture/a.py": "import minicompile.report.b"}),
    "the bottom imports a stage inside a function": (
        rules.forbidden_edges,
        {"ir/a.py": "def f():\n    from ..graph import b", "graph/b.py": "", "graph/__init__.py": ""},
    ),
    "a stage imports the public interface": (rules.forbidden_edges, {"graph/a.py": "import minicompile"}),
    "an unknown package": (rules.forbidden_edges, {"tools/a.py": ""}),
    "two modules import each other": (
        rules.import_cycles,
        {"ir/a.py": "from minicompile.ir import b", "ir/b.py": "from minicompile.ir.a import f"},
    ),
    "a cycle through a function": (
        rules.import_cycles,
        {"ir/a.py": "import minicompile.ir.b", "ir/b.py": "def f():\n    import minicompile.ir.a  # late"},
    ),
    "a cycle through an annotation": (
        rules.import_cycles,
        {
            "ir/a.py": "import minicompile.ir.b",
            "ir/b.py": "if TYPE_CHECKING:\n    from minicompile.ir.a import f",
        },
    ),
    "a cycle through a package": (
        rules.import_cycles,
        {"ir/__init__.py": "import minicompile.ir.a", "ir/a.py": "from minicompile.ir import b", "ir/b.py": ""},
    ),
    "an unexplained import": (rules.unexplained_deferred_imports, {"ir/a.py": "def f():\n    x = 1\n    import os"}),
    "a global": (rules.global_statements, {"ir/a.py": "x = 1\ndef f():\n    global x\n    x = 2"}),
    "a long file": (rules.long_files, {"ir/a.py": "x = 1\n" * 801}),
    "a long function": (rules.long_functions, {"ir/a.py": LONG_FUNCTION}),
    "a long kernel": (
        rules.long_functions,
        {"kernels/a.py": "@triton.jit\ndef kernel():\n" + "    print()\n" * 150},
    ),
    "no module docstring": (rules.missing_docstrings, {"ir/a.py": "x = 1"}),
    "an undocumented function": (rules.missing_docstrings, {"ir/a.py": '"""Doc."""\ndef public(): pass'}),
    "an undocumented method": (
        rules.missing_docstrings,
        {"ir/a.py": '"""Doc."""\nclass Public:\n    """Doc."""\n    def method(self): pass'},
    ),
    "a meaningless name": (rules.forbidden_file_names, {"ir/utils.py": '"""Doc."""'}),
    "too many settings": (
        rules.too_many_config_fields,
        {"config.py": "class Config:\n" + "".join(f"    field{i}: int = 0\n" for i in range(21))},
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_the_checker_finds(planted: str, tmp_path: pathlib.Path) -> None:
    rule, files = PLANTED[planted]
    assert list(rule(plant(tmp_path, files)))


def test_the_checker_finds_a_library_over_its_size(tmp_path: pathlib.Path) -> None:
    plant(tmp_path, {"ir/a.py": "x = 1\n" * 15_000})
    (tmp_path / "minicompile" / "ir" / "template.py.jinja").write_text("x = 1\n" * 5_001)
    assert list(rules.too_many_lines(tmp_path / "minicompile"))


def test_code_lines_leave_out_comments_docstrings_and_blank_lines() -> None:
    assert rules.code_lines('"""A\ndocstring."""\n\nx = 1  # one\n# a comment\ny = """two\nlines"""\n') == 3


def test_the_checker_accepts_what_is_allowed(tmp_path: pathlib.Path) -> None:
    modules = plant(
        tmp_path,
        {
            "errors.py": '"""Doc."""',
            "ir/a.py": '"""Doc."""\nfrom minicompile import errors',
            "ir/base.py": '"""Doc."""\nclass Base:\n    """Doc."""\n    def method(self):\n        """Doc."""',
            "graph/b.py": (
                '"""Doc."""\nfrom typing import TYPE_CHECKING\nfrom minicompile.ir import a, base\n'
                "if TYPE_CHECKING:\n    from minicompile.ir.base import Base\n"
                "class Derived(base.Base):\n    '''Doc.'''\n    def method(self): pass\n    def POP_TOP(self): pass\n"
            ),
            "graph/c.py": '"""Doc."""\ndef _f():\n    # slow to import\n    import minicompile.graph.b\n',
            "kernels/k.py": '"""Doc."""\n@triton.jit\ndef _kernel():\n' + "    print()\n" * 120,
        },
    )
    assert [violation for rule in rules.RULES for violation in rule(modules)] == []


def plant(folder: pathlib.Path, files: dict[str, str]) -> dict[str, rules.Module]:
    """A small tree with the given files, read."""
    for name, text in files.items():
        path = folder / "minicompile" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return rules.read_tree(folder / "minicompile")
