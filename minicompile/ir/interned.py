"""Hash-consing: equal values are one object, so equality is identity and shared sub-expressions are found for free.

This module knows nothing of what is interned. Subclasses annotate their fields and are immutable.
"""

import hashlib
import threading
import weakref
from typing import Any, ClassVar

_lock = threading.Lock()
_table: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()
_references: dict[tuple[Any, ...], weakref.ref[Any]] = vars(_table)["data"]  # its own `get` would be half of the time


class WithSlots(type):
    """The class of classes whose slots are their annotated fields."""

    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> Any:
        """The class, with its slots."""
        return super().__new__(cls, name, bases, {"__slots__": tuple(members.get("__annotations__", ())), **members})


class Interned(metaclass=WithSlots):
    """Base of immutable values that exist once. Construct positionally, in the order of the fields."""

    __slots__: ClassVar[tuple[str, ...]] = ("__weakref__", "_digest")

    def __new__(cls, *fields: Any) -> Any:
        key = cls._key(*fields)
        known = _references.get(key)
        found = known() if known is not None else None
        if found is None:
            with _lock:
                found = _table.get(key)
                if found is None:
                    found = object.__new__(cls)
                    for name, value in zip(cls.__slots__, fields, strict=True):
                        object.__setattr__(found, name, value)
                    _table[key] = found
        return found

    @classmethod
    def _key(cls, *fields: Any) -> tuple[Any, ...]:
        return (cls, *fields)

    @property
    def digest(self) -> str:
        """A short text that equals another's only if the values do, in every process; cheap for shared structure."""
        found: str | None = getattr(self, "_digest", None)
        if found is None:
            parts = ",".join(_field_text(getattr(self, name)) for name in self.__slots__)
            found = hashlib.blake2b(f"{type(self).__name__}({parts})".encode(), digest_size=12).hexdigest()
            object.__setattr__(self, "_digest", found)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), tuple(getattr(self, name) for name in self.__slots__))

    def __repr__(self) -> str:
        return str(self)


def _field_text(value: Any) -> str:
    if isinstance(value, Interned):
        return value.digest
    if isinstance(value, tuple):
        return f"({','.join(map(_field_text, value))})"
    return repr(value)
