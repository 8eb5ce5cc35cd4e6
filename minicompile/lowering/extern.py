"""Operators called as they are: matmuls, convolutions, sorting, and everything without a rule.

Arguments become strided views of buffers, results become buffers with the layout that the fake result promises. An
operator that returns a view is replaced by its copying form, so that no two buffers share storage by accident. This
module must not decide between a library's kernel and ours; the target's name is enough for later stages to do so.
"""

import dataclasses
import operator
from typing import Any

import torch

from minicompile.errors import Unsupported
from minicompile.ir.graph import parts_of
from minicompile.ir.loops import Buffer
from minicompile.ir.operator_names import overload
from minicompile.lowering.builder import GraphBuilder
from minicompile.lowering.registry import lowers
from minicompile.lowering.values import TensorValue

# Operators whose `out=` form computes the same; the result is written into memory that the program plans.
OUT_FORMS = {f"aten.{name}.default": f"aten.{name}.out" for name in ("mm", "bmm", "addmm", "baddbmm")}

COPYING_FORMS: dict[str, str] = {
    "aten._conj.default": "_conj_physical",
    "aten._neg_view.default": "_neg_view_copy",
    "aten.reshape.default": "_reshape_copy",
    "aten.view.default": "_reshape_copy",
}


def call_operator(builder: GraphBuilder, target: Any, args: Any, kwargs: dict[str, Any], reason: str) -> Any:
    """Emit a call of `target` and return its results as values."""
    target, args = without_aliases(target, tuple(args))
    mutated = mutated_arguments(target, args, kwargs)
    arguments = builder.argument(args)
    options = tuple((name, builder.argument(value)) for name, value in kwargs.items())
    if mutated:
        return _call_in_place(builder, target, arguments, options, mutated, reason)
    single = not isinstance(builder.val, (tuple, list))
    results = [builder.val] if single else list(builder.val)
    used = {0} if single else {user.args[1] for user in builder.node.users if user.target is operator.getitem}
    outputs = tuple(
        _output_buffer(builder, result, "" if single else str(i)) if i in used else None
        for i, result in enumerate(results)
    )
    name = qualified_name(target)
    out_form = OUT_FORMS.get(name)
    builder.extern(
        f"torch.ops.{out_form or name}", arguments, options, outputs,
        reason=reason, out_argument=out_form is not None, unpack=not single, pure=is_pure(target),
    )  # fmt: skip
    values = tuple(None if buffer is None else builder.whole(buffer) for buffer in outputs)
    return values[0] if single else values


def qualified_name(target: Any) -> str:
    """`aten.mm.default` for an overload."""
    return f"{target.namespace}.{target._schema.name.split('::')[1]}.{target._overloadname}"


def is_pure(target: Any) -> bool:
    """Whether the call may be repeated or dropped."""
    known = target.namespace in ("aten", "prims", "minicompile")
    return known and bool(target._schema.returns) and torch.Tag.nondeterministic_seeded not in target.tags


def without_aliases(target: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The operator that copies where `target` would return a view of its argument."""
    name = qualified_name(target)
    if name in COPYING_FORMS:
        return overload(COPYING_FORMS[name]), args
    returns = target._schema.returns
    if any(r.alias_info is not None and not r.alias_info.is_write for r in returns) or _lists_views(target):
        namespace, base, form = name.split(".", 2)
        found = overload(f"{namespace}.{base}_copy.{form}")
        if found is None:
            raise Unsupported("view operator", f"{name} returns a view and has no copying form")
        return found, args
    return target, args


def _lists_views(target: Any) -> bool:
    arguments = target._schema.arguments
    return any(a.alias_info is not None and not a.alias_info.is_write and a.alias_info.after_set for a in arguments)


def mutated_arguments(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[TensorValue, ...]:
    """The tensors that the operator writes."""
    found: list[Any] = []
    for position, argument in enumerate(target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.extend(parts_of(args[position] if position < len(args) else kwargs.get(argument.name)))
    return tuple(value for value in found if isinstance(value, TensorValue))


def _call_in_place(
    builder: GraphBuilder, target: Any, args: Any, kwargs: Any, mutated: tuple[TensorValue, ...], reason: str
) -> Any:
    """A call that writes some arguments: they get new names for the same storage."""
    if len(mutated) != len({value.buffer for value in mutated}) or any(value.strides is None for value in mutated):
        raise Unsupported("in-place operator", f"{qualified_name(target)} writes one tensor through several arguments")
    if torch.Tag.inplace_view in target.tags:
        raise Unsupported("in-place operator", f"{qualified_name(target)} changes sizes in place")
    returned = builder.val if isinstance(builder.val, (tuple, list)) else () if builder.val is None else (builder.val,)
    if len(returned) > len(mutated) or not all(r.alias_info for r in target._schema.returns):
        raise Unsupported("in-place operator", f"{qualified_name(target)} both writes arguments and makes tensors")
    old = tuple(value.buffer for value in mutated)
    new = tuple(builder.new_version(name) for name in old)
    builder.extern(
        f"torch.ops.{qualified_name(target)}", args, kwargs, new, overwrites=old, pure=False,
        unpack=len(new) > 1, reason=f"{reason}; writes its arguments",
    )  # fmt: skip
    values = tuple(dataclasses.replace(v, buffer=b.name) for v, b in zip(mutated, new, strict=True))
    if not returned:
        return None
    return values[: len(returned)] if isinstance(builder.val, (tuple, list)) else values[0]


def _output_buffer(builder: GraphBuilder, result: Any, suffix: str) -> Buffer | None:
    if isinstance(result, torch.Tensor):
        if result.layout != torch.strided:
            raise Unsupported("sparse tensor", f"{builder.node.target} returns a {result.layout} tensor")
        return builder.buffer_for(result, suffix)
    if result is None:
        return None
    raise Unsupported("result of a call", f"{builder.node.target} returns a {type(result).__name__} among its results")


@lowers("convolution convolution_backward")
def lower_convolution(builder: GraphBuilder, *args: Any, **kwargs: Any) -> Any:
    """The library's convolution, in the memory format of its arguments."""
    return call_operator(builder, builder.node.target, args, kwargs, "a convolution")
