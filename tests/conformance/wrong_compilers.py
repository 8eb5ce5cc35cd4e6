"""Compilers that are wrong on purpose, each in one way that real compilers have been wrong.

Every entry says which programs must notice. The harness that lets one of them pass is broken.
"""

from __future__ import annotations

import copy
import functools
import io
import random
import types
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import torch

from tests.conformance.compilers import Compile


def wraps_calls(change: Callable[..., Any]) -> Compile:
    """A compiler whose functions run `change(function, args, kwargs)` instead of the call."""

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function, updated=())
        def wrong(*args: Any, **kwargs: Any) -> Any:
            return change(function, args, kwargs)

        return wrong

    return compile


def caches_the_first_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Never guards anything."""
    results: list[Any] = []

    def wrong(*args: Any, **kwargs: Any) -> Any:
        if not results:
            results.append(function(*args, **kwargs))
        return results[0]

    return wrong


def guards_shapes_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Takes Python values for constants from the first call with these tensor shapes."""
    seen: dict[Any, tuple[Any, ...]] = {}

    def wrong(*args: Any, **kwargs: Any) -> Any:
        key = tuple(arg.shape if isinstance(arg, torch.Tensor) else None for arg in args)
        first = seen.setdefault(key, args)
        return function(*[new if isinstance(new, torch.Tensor) else old for new, old in zip(args, first)], **kwargs)

    return wrong


def bakes_globals_and_cells(function: Callable[..., Any]) -> Callable[..., Any]:
    """Freezes globals, closure and defaults at compile time."""
    if not isinstance(function, types.FunctionType):
        return function
    cells = tuple(types.CellType(cell.cell_contents) for cell in function.__closure__ or ())
    frozen = types.FunctionType(function.__code__, dict(function.__globals__), "frozen", function.__defaults__, cells)
    frozen.__kwdefaults__ = dict(function.__kwdefaults__ or {})
    return frozen


def runs_in_the_dtype_of_the_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Ignores dtype changes."""
    dtypes: list[torch.dtype] = []

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            dtypes.append(result.dtype)
            return result.to(dtypes[0])
        return result

    return wrong


def on_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """`change` applied to every tensor in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(on_tensors(item, change) for item in value)
    if type(value) is dict:
        return {key: on_tensors(item, change) for key, item in value.items()}
    return value


def changes_results(change: Callable[[torch.Tensor], Any]) -> Compile:
    """A compiler that changes every tensor it returns."""
    return wraps_calls(lambda function, args, kwargs: on_tensors(function(*args, **kwargs), change))


def drops_mutations(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Works on copies of the arguments."""
    return function(*[copy.deepcopy(arg) if not isinstance(arg, torch.nn.Module) else arg for arg in args], **kwargs)


def runs_twice(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Repeats side effects."""
    function(*args, **kwargs)
    return function(*args, **kwargs)


def swallows_exceptions(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Returns `None` where eager raises."""
    try:
        return function(*args, **kwargs)
    except Exception:
        return None


def renames_exceptions(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Wraps what eager raises in an exception of its own."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise RuntimeError(f"compiled code failed: {error}") from error


def loses_the_line(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Raises the right exception from nowhere."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raised = error.with_traceback(None)
    raise raised


def swallows_output(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Prints nothing and warns of nothing."""
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def leaves_grad_mode_off(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Forgets to put the grad mode back."""
    result = function(*args, **kwargs)
    torch.set_grad_enabled(False)
    return result


def ignores_the_grad_mode(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Always records gradients."""
    with torch.enable_grad():
        return function(*args, **kwargs)


def draws_random_numbers(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Advances the generators."""
    torch.rand(1)
    random.random()
    return function(*args, **kwargs)


def separates_equal_arguments(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Assumes that no two arguments are one object."""
    seen: set[int] = set()
    fresh = []
    for arg in args:
        fresh.append(copy.deepcopy(arg) if id(arg) in seen else arg)
        seen.add(id(arg))
    return function(*fresh, **kwargs)


def lists_for_tuples(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Returns a list where eager returns a tuple."""
    result = function(*args, **kwargs)
    return list(result) if isinstance(result, tuple) else result


def noisy(tensor: torch.Tensor) -> torch.Tensor:
    """Values off by a few thousandths."""
    return tensor * 1.002 if tensor.is_floating_point() else tensor


def in_half(tensor: torch.Tensor) -> torch.Tensor:
    """Values that went through fp16."""
    return tensor.half().to(tensor.dtype) if tensor.is_floating_point() else tensor


def transposed_layout(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in another layout."""
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


def nan_to_zero(tensor: torch.Tensor) -> torch.Tensor:
    """Loses NaN and infinity."""
    return torch.nan_to_num(tensor) if tensor.is_floating_point() else tensor


WRONG: dict[str, tuple[Compile, tuple[str, ...]]] = {
    "caches the first result": (caches_the_first_result, ("branch_on_an_argument", "every_property_of_a_tensor")),
    "guards shapes only": (guards_shapes_only, ("integer_that_varies", "string_argument")),
    "bakes globals and cells": (bakes_globals_and_cells, ("global_read", "closure_cell_changed_between_calls")),
    "ignores dtype changes": (runs_in_the_dtype_of_the_first_call, ("every_property_of_a_tensor",)),
    "drops mutations": (wraps_calls(drops_mutations), ("input_changed_in_place", "list_seen_by_the_caller")),
    "runs twice": (wraps_calls(runs_twice), ("nonlocal_counter", "print_order", "buffer_updated_in_forward")),
    "swallows exceptions": (wraps_calls(swallows_exceptions), ("exception_leaves_the_frame",)),
    "renames exceptions": (wraps_calls(renames_exceptions), ("shape_mismatch_in_torch", "missing_key")),
    "loses the line": (wraps_calls(loses_the_line), ("exception_after_a_mutation",)),
    "swallows output": (wraps_calls(swallows_output), ("print_order", "warning_from_the_frame")),
    "leaves grad mode off": (wraps_calls(leaves_grad_mode_off), ("pointwise_chain",)),
    "ignores the grad mode": (wraps_calls(ignores_the_grad_mode), ("grad_mode_of_the_caller",)),
    "draws random numbers": (wraps_calls(draws_random_numbers), ("random_factories", "python_random_in_the_frame")),
    "separates equal arguments": (wraps_calls(separates_equal_arguments), ("same_tensor_twice", "same_list_twice")),
    "lists for tuples": (wraps_calls(lists_for_tuples), ("every_clause_of_try", "star_unpacking_in_a_return")),
    "clones results": (changes_results(torch.clone), ("input_returned", "view_of_an_input_returned")),
    "detaches results": (changes_results(torch.Tensor.detach), ("gradients_of_several_inputs",)),
    "noisy results": (changes_results(noisy), ("pointwise_chain", "sequential")),
    "half precision inside": (changes_results(in_half), ("pointwise_chain", "einsum")),
    "another layout": (changes_results(transposed_layout), ("sequential",)),
    "loses NaN and infinity": (changes_results(nan_to_zero), ("special_values",)),
}
