"""Custom operators whose backward cannot be traced, because it looks at values: it runs as an operator of its own.

The backward's operator repeats the forward from the same arguments, in eager, and differentiates that. This module must
not decide for which operators that is worth it.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from minicompile.graph import torch_interface
from minicompile.graph.operators import is_foreign
from minicompile.ir.graph import parts_of

LIBRARY = torch.library.Library("minicompile", "FRAGMENT")


class Opaque(torch.autograd.Function):
    """A call of a custom operator, its arguments without their lists, with the gradient of `gradient_operator`."""

    @staticmethod
    def forward(ctx: Any, operator: Any, spec: TreeSpec, *leaves: Any) -> Any:
        """The operator's own result, as a tuple if it is a list."""
        tensors = [index for index, each in enumerate(leaves) if isinstance(each, Tensor)]
        ctx.save_for_backward(*(leaves[index] for index in tensors))
        ctx.operator, ctx.spec, ctx.tensors = operator, spec, tensors
        ctx.others = [None if isinstance(each, Tensor) else each for each in leaves]
        ctx.set_materialize_grads(False)
        result = operator(*tree_unflatten(leaves, spec))
        return tuple(result) if isinstance(result, list) else result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Gradients of the tensors that need one."""
        leaves = list(ctx.others)
        for index, tensor in zip(ctx.tensors, ctx.saved_tensors, strict=True):
            leaves[index] = tensor
        wanted = [index for index in ctx.tensors if ctx.needs_input_grad[2 + index]]
        found = gradient_operator(ctx.operator)(list(gradients), wanted, *tree_unflatten(leaves, ctx.spec))
        by_index = dict(zip(wanted, found, strict=True))
        return (None, None, *(by_index.get(index) for index in range(len(leaves))))


def is_custom(operator: Any) -> bool:
    """Whether a function is an operator of somebody else's, without views or writes."""
    if not is_foreign(operator):
        return False
    schema = operator._schema
    aliases = any(part.alias_info is not None for part in (*schema.arguments, *schema.returns))
    return not aliases and not any(argument.kwarg_only for argument in schema.arguments)


def opaque_call(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator's result, with an opaque backward."""
    rest = [kwargs.get(argument.name, argument.default_value) for argument in operator._schema.arguments[len(args) :]]
    leaves, spec = tree_flatten([*args, *rest])
    return Opaque.apply(operator, spec, *leaves)


@functools.cache
def gradient_operator(operator: Any) -> Any:
    """`(gradients, wanted, *arguments)` to the gradients of the arguments, without their lists, at the positions `wanted`."""
    arguments = str(operator._schema).split("(", 1)[1].rsplit(") ->", 1)[0]
    name = f"gradient_of_{operator._schema.name.replace('::', '_')}_{operator._overloadname}"
    LIBRARY.define(f"{name}(Tensor?[] gradients, int[] wanted, {arguments}) -> Tensor[]")

    def run(gradients: list[Tensor | None], wanted: list[int], *args: Any) -> list[Tensor]:
        given, spec = tree_flatten(args)
        with torch_interface.with_autograd():
            leaves = {index: given[index].detach().requires_grad_() for index in wanted}
            results = parts_of(operator(*tree_unflatten([leaves.get(index, each) for index, each in enumerate(given)], spec)))
            pairs = [(result, g) for result, g in zip(results, gradients, strict=True) if g is not None and result.requires_grad]
            outs, tangents = zip(*pairs, strict=True)
            found = torch.autograd.grad(outs, list(leaves.values()), tangents, materialize_grads=True, allow_unused=True)
        return [gradient.contiguous() for gradient in found]

    def fake(gradients: list[Tensor | None], wanted: list[int], *args: Any) -> list[Tensor]:
        given = tree_leaves(args)
        return [given[index].new_empty(given[index].shape) for index in wanted]

    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"minicompile::{name}", fake, lib=LIBRARY)
    return getattr(torch.ops.minicompile, name).default
