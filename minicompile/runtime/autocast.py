"""Keeps the caller's autocast away from what a compiled graph calls.

The casts that autocast asks for stand in the graph, put there when it was captured. An extern kernel called under an
autocast that is still switched on would cast a second time, also where the user had switched autocast off inside.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

FlatCall = Callable[[list[Any]], tuple[Any, ...]]

# Private, the same in torch 2.11 to 2.13.
_autocast_is_on = torch._C._is_any_autocast_enabled
_autocast_off = torch._C._DisableAutocast


def without_autocast(call: FlatCall) -> FlatCall:
    """`call` with autocast switched off on every device."""

    @functools.wraps(call)
    def run(arguments: list[Any]) -> tuple[Any, ...]:
        if not _autocast_is_on():
            return call(arguments)
        with _autocast_off():
            return call(arguments)

    return run
