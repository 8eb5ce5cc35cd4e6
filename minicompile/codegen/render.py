"""The Jinja templates of generated files.

This module must not compute anything: what a template prints is prepared by its callers.
"""

import functools
import re
from typing import Any

import jinja2

from minicompile.codegen.kernel_text import KernelText

LINE_LENGTH = 120


@functools.cache
def environment() -> jinja2.Environment:
    """The template environment; a name that a template uses and nobody gave is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("minicompile.codegen", "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=False,
        autoescape=False,
    )


def render(template: str, **names: Any) -> str:
    """The text of `templates/<template>.py.jinja`, with at most two blank lines together."""
    text = environment().get_template(f"{template}.py.jinja").render(**names)
    return re.sub(r"\n{4,}", "\n\n\n", text.strip()) + "\n"


def kernel_source(kernel: KernelText) -> str:
    """A kernel's definition, decorator included."""
    return render("function", name=kernel.name, parameters=_signature(kernel), lines=kernel.setup + kernel.body)


def _signature(kernel: KernelText) -> str:
    parameters = [*(argument.name for argument in kernel.arguments), *(f"{name}: tl.constexpr" for name, _ in kernel.constants)]
    line = ", ".join(parameters)
    if len(f"def {kernel.name}({line}):") <= LINE_LENGTH:
        return line
    return "\n" + "".join(f"    {parameter},\n" for parameter in parameters)
