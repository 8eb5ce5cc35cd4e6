"""Sources: where a value of the user's program came from, as something that can be fetched again.

A source prints itself twice: as an expression over the text of its base (for generated code) and as the words by which
the user knows the value (for guards and graph inputs). It must not hold the value itself.
"""

from __future__ import annotations

import keyword
import re
import sys
import types
from typing import Any


class Source:
    """Base of all sources. `parent` is the source of the value that this one is read from."""

    __slots__ = ("parent",)
    parent: Source | None

    def expression(self, base: str, constant: Any) -> str:
        """Python text that reads the value; `base` is the parent's text, `constant(value, hint)` names an object."""
        raise TypeError(type(self).__name__)

    def words(self) -> str:
        """The value in the user's terms."""
        raise TypeError(type(self).__name__)


class Root(Source):
    """One of the names every generated function takes: the callable, its positional and its keyword arguments."""

    __slots__ = ("name", "label")

    def __init__(self, name: str, label: str) -> None:
        self.parent, self.name, self.label = None, name, label

    def expression(self, base: str, constant: Any) -> str:
        return self.name

    def words(self) -> str:
        return self.label


class Baked(Source):
    """An object that the generated code holds directly: a module's globals, a class, a library module."""

    __slots__ = ("value", "label")

    def __init__(self, value: Any, label: str) -> None:
        self.parent, self.value, self.label = None, value, label

    def expression(self, base: str, constant: Any) -> str:
        return constant(self.value, self.label)

    def words(self) -> str:
        return self.label


class Attribute(Source):
    """`parent.name`."""

    __slots__ = ("name",)

    def __init__(self, parent: Source, name: str) -> None:
        self.parent, self.name = parent, name

    def expression(self, base: str, constant: Any) -> str:
        return f"{base}.{self.name}"

    def words(self) -> str:
        if self.name in ("__dict__", "__func__", "__self__"):
            return self.parent.words() if self.parent else self.name
        return f"{self.parent.words() if self.parent else ''}.{self.name}"


class Item(Source):
    """`parent[key]` with a key that is a literal or an object held by the generated code."""

    __slots__ = ("key",)

    def __init__(self, parent: Source, key: Any) -> None:
        self.parent, self.key = parent, key

    def expression(self, base: str, constant: Any) -> str:
        return f"{base}[{literal(self.key) or constant(self.key, 'key')}]"

    def words(self) -> str:
        base, key = self.parent.words() if self.parent else "", self.key
        if isinstance(self.parent, Attribute) and self.parent.name == "__dict__" and isinstance(key, str):
            return base if key in ("_parameters", "_buffers", "_modules") else f"{base}.{key}"
        owner = self.parent
        if isinstance(owner, Item) and owner.key in ("_parameters", "_buffers", "_modules") and isinstance(key, str):
            return f"{base}[{key}]" if key.isdigit() else f"{base}.{key}"
        if isinstance(owner, Baked) and owner.label.startswith("globals of"):
            return str(key)
        return f"{base}[{key!r}]"


class PlainItem(Item):
    """An item of a subclass of a builtin container, fetched without what the subclass does (`__missing__`, overrides)."""

    __slots__ = ("kind",)

    def __init__(self, parent: Source, key: Any, kind: type) -> None:
        super().__init__(parent, key)
        self.kind = kind

    def expression(self, base: str, constant: Any) -> str:
        fetch = constant(plain_entry, "plain_entry") if self.kind is dict else f"{self.kind.__name__}.__getitem__"
        return f"{fetch}({base}, {literal(self.key) or constant(self.key, 'key')})"


def plain_entry(table: dict[Any, Any], key: Any) -> Any:
    """An entry of a dictionary; `dict.__getitem__` would call the `__missing__` of a subclass."""
    if dict.__contains__(table, key):
        return dict.__getitem__(table, key)
    raise KeyError(key)


def item_of(parent: Source, container: Any, key: Any) -> Item:
    """The source of an item of a list, tuple or dictionary."""
    for kind in (list, tuple, dict):
        if isinstance(container, kind) and type(container).__getitem__ is not kind.__getitem__:
            return PlainItem(parent, key, kind)
    return PlainItem(parent, key, dict) if hasattr(type(container), "__missing__") else Item(parent, key)


class DictEntry(Source):
    """Key or value at a position of a dictionary whose keys are not literals."""

    __slots__ = ("position", "part")

    def __init__(self, parent: Source, position: int, part: str) -> None:
        self.parent, self.position, self.part = parent, position, part

    def expression(self, base: str, constant: Any) -> str:
        return f"list({base}.{self.part}())[{self.position}]"

    def words(self) -> str:
        return f"list({self.parent.words() if self.parent else ''}.{self.part}())[{self.position}]"


class Elements(Source):
    """`list(parent)`: the elements of a container that cannot be indexed, such as a deque subclass or an iterator."""

    __slots__ = ("call",)

    def __init__(self, parent: Source, call: Any) -> None:
        self.parent, self.call = parent, call

    def expression(self, base: str, constant: Any) -> str:
        return f"{constant(self.call, getattr(self.call, '__name__', 'call'))}({base})"

    def words(self) -> str:
        return self.parent.words() if self.parent else ""


class CachedCall(Source):
    """`parent(*args, **kwargs)` of a function with a cache (`lru_cache`), which gives the same object each time."""

    __slots__ = ("args", "kwargs")

    def __init__(self, parent: Source, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.parent, self.args, self.kwargs = parent, args, kwargs

    def expression(self, base: str, constant: Any) -> str:
        parts = [literal(item) or constant(item, "argument") for item in self.args]
        parts.extend(f"{key}={literal(item) or constant(item, 'argument')}" for key, item in self.kwargs.items())
        return f"{base}({', '.join(parts)})"

    def words(self) -> str:
        return f"{self.parent.words() if self.parent else ''}(...)"


class Argument(Item):
    """An argument of the captured function, known to the user by its parameter's name."""

    __slots__ = ("label",)

    def __init__(self, parent: Source, key: Any, label: str) -> None:
        super().__init__(parent, key)
        self.label = label

    def words(self) -> str:
        return self.label


class FreeVariable(Attribute):
    """The cell of a closure variable."""

    __slots__ = ("position", "label")

    def __init__(self, parent: Source, position: int, label: str) -> None:
        super().__init__(parent, "__closure__")
        self.position, self.label = position, label

    def expression(self, base: str, constant: Any) -> str:
        return f"{base}.__closure__[{self.position}]"

    def words(self) -> str:
        return self.label


class CellContents(Attribute):
    """The value of a closure variable."""

    __slots__ = ()

    def __init__(self, parent: Source) -> None:
        super().__init__(parent, "cell_contents")

    def words(self) -> str:
        return self.parent.words() if self.parent else ""


def is_trusted_module(name: str | None) -> bool:
    """Whether functions and classes of a module are taken not to be replaced: the standard library and torch."""
    if name is None:
        return False
    return name.partition(".")[0] in TRUSTED_PACKAGES


TRUSTED_PACKAGES = frozenset(sys.stdlib_module_names | {"torch"}) - {"__main__"}


def is_trusted(source: Source) -> bool:
    """Whether a source leads into a module whose functions and classes are taken not to be replaced."""
    parent = source.parent
    if isinstance(parent, Baked) and isinstance(parent.value, dict):
        return is_trusted_module(parent.value.get("__name__"))
    if isinstance(parent, Attribute) and isinstance(parent.parent, Baked) and parent.name == "__dict__":
        return is_trusted_module(getattr(parent.parent.value, "__module__", None))
    if isinstance(parent, Baked) and isinstance(parent.value, types.ModuleType):
        return is_trusted_module(parent.value.__name__)
    return False


LITERALS = (str, bytes, int, bool, type(None))


def literal(value: Any) -> str | None:
    """Python text of a value that can be written down exactly, or `None`."""
    kind = type(value)
    if kind in LITERALS or value is Ellipsis:
        return repr(value)
    if kind is float:
        return repr(value) if value == value and abs(value) != float("inf") else f"float('{value}')"
    if kind is tuple:
        parts = [literal(item) for item in value]
        if any(part is None for part in parts):
            return None
        return f"({', '.join(part for part in parts if part)}{',' if len(parts) == 1 else ''})"
    return None


def identifier(text: str, fallback: str = "value") -> str:
    """A Python identifier that resembles `text`."""
    name = re.sub(r"\W+", "_", text).strip("_").lower()
    if not name:
        return fallback
    return f"_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name
