"""The public entry of capture: a callable that behaves like the original and runs captured graphs.

Must not know how graphs are compiled; the backend is handed in.
"""

from typing import Any

from torch.compiler import is_dynamo_compiling

from minicompile.capture.frame_cache import Backend, CallCache, Session
from minicompile.capture.records import Records
from minicompile.capture.resume import Resumption, finished
from minicompile.capture.user_line import name_of
from minicompile.capture.variant import MISS
from minicompile.config import Config, current


class CompiledCallable:
    """`function`, captured when it is called.

    Attributes:
        function: the original callable.
        records: what capture did so far.
    """

    __minicompile_compiled__ = "function"

    def __init__(self, function: Any, backend: Backend, config: Config | None = None) -> None:
        self.function = function
        self.session = Session(backend, config or current())
        self.cache = CallCache(self.session, name_of(function))

    @property
    def records(self) -> Records:
        """Graphs, graph breaks, recompiles, fallbacks and generated sources so far."""
        return self.session.records

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return self.function(*args, **kwargs)  # under torch.compile, that one compiles
        cache = self.cache
        entries = cache.entries
        if entries:
            result = entries[0].function(self.function, args, kwargs)
            if result is not MISS:
                return result if type(result) is not Resumption else finished(result)
        return finished(cache.call(self.function, args, kwargs))
