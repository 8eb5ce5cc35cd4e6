"""Python's garbage collector waits while something is compiled: a compile makes many objects and almost no cycles, and every
full collection walks all of the loaded libraries. Must not know what runs meanwhile.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator

FROZEN_BY_PYTHON = 1000
"""More objects than Python freezes when it starts: 375 on 3.12, none on 3.11 and 3.13."""

_lock = threading.Lock()
_waiting: list[bool] = []
"""One entry for every block that runs now; the first says whether the collector was on before."""


@contextlib.contextmanager
def collection_postponed() -> Iterator[None]:
    """No automatic collection inside the block, in any thread; blocks may nest and overlap.

    Afterwards all objects count as old: the collections of young ones that are due would walk everything just made, to find it
    alive. A full collection finds what is garbage.
    """
    with _lock:
        _waiting.append(_waiting[0] if _waiting else gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            if _waiting.pop() and not _waiting:
                if gc.get_freeze_count() <= FROZEN_BY_PYTHON:  # what the program itself has frozen stays so
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
