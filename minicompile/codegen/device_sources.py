"""The text of the functions in `device_functions`, read without importing Triton.

This module must not change that text.
"""

import pathlib
from collections.abc import Iterable

_DECORATOR = "@triton.jit\n"
_TEXTS = pathlib.Path(__file__).with_name("device_functions.py").read_text(encoding="utf-8").split(_DECORATOR)[1:]

DEVICE_FUNCTIONS = {text.split("def ", 1)[1].split("(", 1)[0]: _DECORATOR + text.strip() for text in _TEXTS}


def sources(names: Iterable[str]) -> list[str]:
    """The text of the named functions and of those they call, in the order in which they are defined."""
    wanted, unseen = set(names), list(names)
    while unseen:
        source = DEVICE_FUNCTIONS[unseen.pop()]
        called = {other for other in DEVICE_FUNCTIONS if f"{other}(" in source} - wanted
        wanted |= called
        unseen += called
    return [text for name, text in DEVICE_FUNCTIONS.items() if name in wanted]
