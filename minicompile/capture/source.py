"""Sources: where a value of the user's program came from, as something that can be fetched again.

A source prints itself twice: as an expression over the text of its base (for generated code) and as the words by which
the user knows the value (for guards and graph inputs). It must not hold the value itself.
"""

from __future__ import annotations

import collections
import keyword
import re
import sys
import types
from typing import Any


class Source:
    """Where a value is read from.

    Attributes:
        parent: the source of the value that this one is read from.
        text: Python text that reads the value, with `{0}` for the parent's text.
        label: the value in the user's terms, with `{0}` for the parent's words.
    """

    __slots__ = ("parent", "text", "label", "owner_words")

    def __init__(self, parent: Source | None, text: str, label: str = "") -> None:
        self.parent, self.text, self.label = parent, text, label or text
        self.owner_words: str | None = None if parent else ""

    def expression(self, base: str, constant: Any) -> str:
        """Python text that reads the value; `base` is the parent's text, `constant(value, hint)` names an object."""
        return self.text.replace("{0}", base)

    def owner(self) -> str:
        """The value that this one is read from, in the user's terms."""
        if self.owner_words is None and self.parent is not None:
            self.owner_words = self.parent.words()
        return self.owner_words or ""

    def words(self) -> str:
        """The value in the user's terms."""
        return self.label.replace("{0}", self.owner())

    def origin(self) -> tuple[Any, ...]:
        """What one value has in every capture, and no other value: its words, and what the calls in them were given."""
        return self.words(), *self.given()

    def given(self) -> tuple[Any, ...]:
        """The arguments of all calls on the way to the value."""
        return () if self.parent is None else self.parent.given()


class Baked(Source):
    """An object that the generated code holds directly: a module's globals, a class, a library module."""

    __slots__ = ("value",)

    def __init__(self, value: Any, label: str) -> None:
        super().__init__(None, "", label)
        self.value = value

    def expression(self, base: str, constant: Any) -> str:
        return constant(self.value, self.label)


class Attribute(Source):
    """`parent.name`; the user does not see the attributes through which Python's own machinery goes."""

    __slots__ = ("name",)

    def __init__(self, parent: Source, name: str, label: str = "") -> None:
        shown = "{0}" if name in ("__dict__", "__func__", "__self__", "cell_contents") else f"{{0}}.{name}"
        super().__init__(parent, f"{{0}}.{name}", label or shown)
        self.name = name


class Item(Source):
    """`parent[key]` with a key that is a literal or an object held by the generated code."""

    __slots__ = ("key",)

    def __init__(self, parent: Source, key: Any, label: str = "") -> None:
        super().__init__(parent, "", label)
        self.key = key

    def expression(self, base: str, constant: Any) -> str:
        return f"{base}[{literal(self.key) or constant(self.key, 'key')}]"

    def words(self) -> str:
        base, key, owner = self.owner(), self.key, self.parent
        if self.label:
            return self.label
        if isinstance(owner, Attribute) and owner.name == "__dict__" and isinstance(key, str):
            return base if key in MODULE_TABLES else f"{base}.{key}"
        if isinstance(owner, Item) and owner.key in MODULE_TABLES and isinstance(key, str):
            return f"{base}[{key}]" if key.isdigit() else f"{base}.{key}"
        if isinstance(owner, Baked) and owner.label.startswith("globals of"):
            return str(key)
        return f"{base}[{key!r}]"


MODULE_TABLES = ("_parameters", "_buffers", "_modules")
HOOK_TABLES = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


class Argument(Item):
    """An argument of the captured function, known to the user by its parameter's name."""


class PlainItem(Item):
    """An item of a subclass of a builtin container, fetched without what the subclass does (`__missing__`, overrides)."""

    __slots__ = ("kind",)

    def __init__(self, parent: Source, key: Any, kind: Any) -> None:
        super().__init__(parent, key)
        self.kind = kind

    def expression(self, base: str, constant: Any) -> str:
        fetch = constant(plain_entry if self.kind is dict else self.kind.__getitem__, "plain_item")
        return f"{fetch}({base}, {literal(self.key) or constant(self.key, 'key')})"


def plain_entry(table: dict[Any, Any], key: Any) -> Any:
    """An entry of a dictionary; `dict.__getitem__` would call the `__missing__` of a subclass."""
    if dict.__contains__(table, key):
        return dict.__getitem__(table, key)
    raise KeyError(key)


def item_of(parent: Source, container: Any, key: Any) -> Item:
    """The source of an item of a list, tuple or dictionary."""
    for kind in (list, tuple, dict, collections.deque):
        if isinstance(container, kind) and type(container).__getitem__ is not kind.__getitem__:
            return PlainItem(parent, key, kind)
    return PlainItem(parent, key, dict) if hasattr(type(container), "__missing__") else Item(parent, key)


class Computed(Source):
    """What an expression over other sources gives: `text` has `{0}`, `{1}`, ... for `parts`."""

    __slots__ = ("parts",)

    def __init__(self, text: str, parts: tuple[Source, ...]) -> None:
        super().__init__(None, text, text.format(*(part.words() for part in parts)))
        self.parts = parts


class CachedCall(Source):
    """`parent(*args, **kwargs)` of a function with a cache (`lru_cache`), which gives the same object each time.

    `shown` is what tells the arguments from those of other calls, in this capture and in others.
    """

    __slots__ = ("args", "kwargs", "shown")

    def __init__(self, parent: Source, args: tuple[Any, ...], kwargs: dict[str, Any], shown: tuple[Any, ...]) -> None:
        super().__init__(parent, "", "{0}(...)")
        self.args, self.kwargs, self.shown = args, kwargs, shown

    def given(self) -> tuple[Any, ...]:
        return *super().given(), self.shown

    def expression(self, base: str, constant: Any) -> str:
        parts = [literal(item) or constant(item, "argument") for item in self.args]
        parts.extend(f"{key}={literal(item) or constant(item, 'argument')}" for key, item in self.kwargs.items())
        return f"{base}({', '.join(parts)})"


def is_trusted_module(name: str | None) -> bool:
    """Whether functions and classes of a module are taken not to be replaced: the standard library and torch."""
    return name is not None and name.partition(".")[0] in TRUSTED_PACKAGES


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


PLAIN_VALUE: dict[type, Any] = {str: str.__str__, int: int.__int__, float: float.__float__, bytes: bytes.__bytes__}
"""How to read the value of an instance of a subclass, whatever methods that overrides."""


def plain_value(value: Any) -> Any:
    """The number or text that an object is; any other value as it is."""
    return next((read(value) for kind, read in PLAIN_VALUE.items() if isinstance(value, kind)), value)


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
    """A Python identifier that resembles `text`, other than `self`, which a graph's `forward` calls its first argument."""
    name = re.sub(r"\W+", "_", text).strip("_").lower()
    if not name:
        return fallback
    return f"_{name}" if name[0].isdigit() or keyword.iskeyword(name) or name == "self" else name
