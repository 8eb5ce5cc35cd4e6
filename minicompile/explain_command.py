"""`minicompile explain` and `minicompile compare`: find the function and its inputs, then call the public interface.

This module must not explain anything itself.
"""

import argparse
import os
import pathlib
import pkgutil
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

import minicompile

TARGET = "module:function, with a function example_inputs() beside it or --input; or script.py with its own arguments"


def add_options(commands: Any) -> None:
    """The two commands and their options."""
    for name, purpose in (
        ("explain", "say what was done with a function, and why it is fast or not"),
        ("compare", "eager, torch.compile and minicompile side by side on one call"),
    ):
        command = commands.add_parser(name, help=purpose, allow_abbrev=False)
        command.add_argument("target", help=TARGET)
        command.add_argument("--input", action="append", metavar="EXPRESSION", help='one argument: "randn(8, 128)"')
        command.add_argument("--device", help="move module and inputs there, as in cuda")
        command.add_argument("--mode", help="of the compilation, as in minicompile.compile")
        command.add_argument("--json", metavar="FILE", help="also write every record here")
        if name == "explain":
            command.add_argument("--html", metavar="FILE", help="also write the page as HTML")
            command.add_argument("--sweep", action="store_true", default=None, help="try other batch sizes too")


def run(options: argparse.Namespace, script_arguments: Sequence[str]) -> int:
    """Run one of the commands; the arguments are those that are not options of ours."""
    status = 0
    if options.target.endswith(".py"):
        calls, status = run_script(options.target, script_arguments)
        if not calls:
            print(f"{options.target} called no function compiled by minicompile")
            return status or 1
    else:
        target, inputs = found(options.target), example_inputs(options)
        if options.device:
            inputs = tuple(value.to(options.device) if isinstance(value, torch.Tensor) else value for value in inputs)
            target = target.to(options.device) if isinstance(target, torch.nn.Module) else target
        calls = [(target, inputs, {})]
    for number, (function, args, kwargs) in enumerate(calls):
        if options.command == "compare":
            report: Any = minicompile.compare(function, mode=options.mode)(*args, **kwargs)
        else:
            report = minicompile.explain(function, sweep=options.sweep, mode=options.mode)(*args, **kwargs)
            if options.html:
                print(f"written: {report.save(numbered(options.html, number))}")
        print(report)
        if options.json:
            numbered(options.json, number).write_text(report.to_json())
    return status


def run_script(path: str, arguments: Sequence[str]) -> tuple[list[tuple[Any, tuple[Any, ...], dict[str, Any]]], int]:
    """Run a script as Python would; returns the first call of every function that it compiled, and its exit status."""
    if not os.path.exists(path):
        raise SystemExit(f"there is no file {path}")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    before, sys.argv = sys.argv, [path, *arguments]
    status: Any = 0
    with minicompile.api.first_calls() as calls:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int | None) else 1
        except BaseException as error:  # what it compiled until then is explained all the same
            own = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_ours(frame.filename)]
            lines = traceback.format_exception_only(error)
            print("".join(["Traceback (most recent call last):\n", *traceback.format_list(own), *lines]), file=sys.stderr)
            status = 1
    sys.argv = before
    return [*calls.values()], status or 0


def is_ours(file: str) -> bool:
    """Whether a frame is of the machinery around a script."""
    return file.startswith(("<frozen", os.path.dirname(__file__) + os.sep))


def found(target: str) -> Any:
    """The object that `module:name.name` means."""
    module, _, name = target.partition(":")
    if not name:
        raise SystemExit(f"{target!r} names no function: {TARGET}")
    sys.path.insert(0, os.getcwd())
    try:
        value = pkgutil.resolve_name(target)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise  # something that the module itself imports
        raise SystemExit(f"there is no module {missing.name!r} (looked in this folder, too)") from None
    except AttributeError as missing:
        raise SystemExit(str(missing)) from None
    if isinstance(value, type) or not callable(value):
        raise SystemExit(f"{target} is no function or nn.Module object, but {value!r}")
    return value


def example_inputs(options: argparse.Namespace) -> tuple[Any, ...]:
    """The inputs given as expressions over torch's names, or by `example_inputs()` of the target's module."""
    if options.input:
        return tuple(map(evaluated, options.input))
    module = sys.modules[options.target.partition(":")[0]]
    make: Callable[[], Any] | None = getattr(module, "example_inputs", None)
    if make is None:
        raise SystemExit(f'{module.__name__} has no example_inputs(); give --input "randn(8, 128)" for every argument')
    inputs = make()
    return inputs if isinstance(inputs, tuple) else (inputs,)


def evaluated(text: str) -> Any:
    """The value of an expression over torch's names."""
    try:
        return eval(text, {**vars(torch), "torch": torch})  # the user's own text
    except Exception as error:  # whatever the user's expression raises
        raise SystemExit(f"--input {text!r}: {type(error).__name__}: {error}") from None


def numbered(name: str, number: int) -> pathlib.Path:
    """The file for the report of one of several functions."""
    path = pathlib.Path(name)
    return path if number == 0 else path.with_stem(f"{path.stem}_{number + 1}")
