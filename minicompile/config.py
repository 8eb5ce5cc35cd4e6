"""The compiler's settings: one frozen `Config`, the active one, and `patch()`.

This module must not read anything of ours but `errors`; it holds no state other than the active configuration,
which is a context variable so that threads and nested `patch()` blocks never see each other's settings.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import os
import pathlib
from collections.abc import Iterator

from minicompile.errors import InvalidOption


def default_cache_directory() -> pathlib.Path:
    """The folder for compiled artifacts: `MINICOMPILE_CACHE_DIR`, else the user's cache folder."""
    explicit = os.environ.get("MINICOMPILE_CACHE_DIR")
    if explicit:
        return pathlib.Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "minicompile"


@dataclasses.dataclass(frozen=True)
class Config:
    """Every setting of the compiler. At most twenty fields; unknown names are refused with the nearest valid one.

    Attributes:
        fullgraph: raise on a graph break instead of running the part in eager.
        dynamic: `None` makes a dimension symbolic at its second size, `True` at once, `False` never.
        mode: `default`; `reduce-overhead`, which replays CUDA graphs on a GPU; `max-autotune-no-cudagraphs`, which
            measures tiles there; `max-autotune`, which does both.
        autotune_seconds: how long the kernels of one compiled function may be measured.
        recompile_limit: compiled variants per function (and grad mode, autocast, ...) before calls run eager, with a warning.
        emulate_precision_casts: round bf16/fp16 intermediates where eager rounds them.
        fallback_random: draw random numbers with eager's kernels instead of fused Philox.
        activation_memory_budget: between 0 (recompute all that may be) and 1 (save what time asks for).
        attention: `auto`, `triton` or `aten`.
        fuse: pairs of operators, variables or lines (`model.py:12`) to put into one kernel wherever that is legal, even if
            the policy finds that it does not pay; see `minicompile.why_not_fused`.
        matmul: `auto` takes our kernel where a model expects it to win, `triton` always, `aten` never.
        cache: use the disk cache.
        cache_directory: where it lies.
        cache_megabytes: its size limit.
        dump_directory: write one numbered folder per compile here (`MINICOMPILE_DUMP`).
        verify: run every IR verifier between stages.
        suppress_errors: fall back to eager when the compiler itself fails; tests switch it off.
        disable: run everything eager (`MINICOMPILE_DISABLE=1`).
        check: run eager beside the first so many calls of every graph and every hundredth (with a pair of numbers, every
            so many), compare, and use eager's result where they differ.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    mode: str = "default"
    autotune_seconds: float = 30.0
    recompile_limit: int = 8
    emulate_precision_casts: bool = False
    fallback_random: bool = False
    activation_memory_budget: float = 1.0
    attention: str = "auto"
    matmul: str = "auto"
    fuse: tuple[tuple[str, str], ...] = ()
    cache: bool = True
    cache_directory: pathlib.Path = dataclasses.field(default_factory=default_cache_directory)
    cache_megabytes: int = 4096
    dump_directory: str | None = dataclasses.field(default_factory=lambda: os.environ.get("MINICOMPILE_DUMP"))
    verify: bool = dataclasses.field(default_factory=lambda: os.environ.get("MINICOMPILE_VERIFY") == "1")
    suppress_errors: bool = True
    disable: bool = dataclasses.field(default_factory=lambda: os.environ.get("MINICOMPILE_DISABLE") == "1")
    check: int | tuple[int, int] = 0

    def replace(self, **changes: object) -> Config:
        """A copy with `changes` applied; an unknown name or a value out of range raises `InvalidOption`."""
        names = tuple(field.name for field in dataclasses.fields(self))
        for name in (name for name in changes if name not in names):
            raise InvalidOption(name, changes[name], names, unknown=True)
        if "cache_directory" in changes:
            changes["cache_directory"] = pathlib.Path(changes["cache_directory"])  # type: ignore[arg-type]  # raises
        changed = dataclasses.replace(self, **changes)  # type: ignore[arg-type]  # checked by name and value
        changed.validate()
        return changed

    def validate(self) -> None:
        """Raise `InvalidOption` for a value outside its documented choices."""
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise InvalidOption(name, value, choices)
        if not 0.0 <= self.activation_memory_budget <= 1.0:
            raise InvalidOption("activation_memory_budget", self.activation_memory_budget, ("0.0 to 1.0",))


CHOICES: dict[str, tuple[object, ...]] = {
    "mode": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    "attention": ("auto", "triton", "aten"),
    "matmul": ("auto", "triton", "aten"),
    "dynamic": (None, True, False),
}

_DEFAULT = Config()
_active: contextvars.ContextVar[Config] = contextvars.ContextVar("minicompile_config", default=_DEFAULT)


def current() -> Config:
    """The configuration in force in this thread."""
    return _active.get()


@contextlib.contextmanager
def patch(**changes: object) -> Iterator[Config]:
    """Use a changed configuration inside a `with` block, in this thread only."""
    changed = current().replace(**changes)
    token = _active.set(changed)
    try:
        yield changed
    finally:
        _active.reset(token)
