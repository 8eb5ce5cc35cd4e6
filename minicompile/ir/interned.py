"""Hash-consing: equal values are one object, so equality is identity and shared sub-expressions are found for free.

This module knows nothing of what is interned. Subclasses list their fields in `__slots__` and are immutable.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, ClassVar

_lock = threading.Lock()
_table: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()


class Interned:
    """Base of immutable values that exist once. Construct positionally, in the order of `__slots__`."""

    __slots__: ClassVar[tuple[str, ...]] = ("__weakref__",)

    def __new__(cls, *fields: Any) -> Any:
        key = cls._key(*fields)
        found = _table.get(key)
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

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), tuple(getattr(self, name) for name in self.__slots__))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __repr__(self) -> str:
        return str(self)
