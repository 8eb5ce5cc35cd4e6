"""What kind of object a value is, found out without running code of the user's.

Python's own `isinstance` reads `value.__class__` where the type alone does not answer: a class with a `__getattribute__` would be
asked by every look that capture takes at its objects.
"""

import builtins
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builtins import isinstance as isinstance
else:

    def isinstance(value: Any, kinds: Any) -> bool:
        """`isinstance(value, kinds)`; of an object that would be asked, by its type alone."""
        kind = type(value)
        if type(kind) is type and type(kind.__getattribute__) is types.FunctionType:
            return issubclass(kind, kinds)
        return builtins.isinstance(value, kinds)
