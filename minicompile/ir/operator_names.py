"""PyTorch's operators by name, for tables of them; those that this torch version lacks are left out."""

from typing import Any

import torch

AUGMENTED = frozenset("iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split())
"""What `x += y` and its kin call: the function of `operator`, or with two underscores at each end the method."""

BECOMES_A_VIEW = frozenset("t_ transpose_ swapaxes_ swapdims_ unsqueeze_ squeeze_ as_strided_".split())
"""Operators that make a tensor, in place, the view of it that the operator of the same name without `_` gives."""


def overload(name: str) -> Any | None:
    """The overload called `add.Tensor` (of ATen), `add` (the default one) or `minicompile.seeds.default`, if there is one."""
    parts = name.split(".")
    namespace, packet, form = parts if len(parts) == 3 else ("aten", *parts, "default")[:3]
    return getattr(getattr(getattr(torch.ops, namespace), packet, None), form, None)


def overloads(names: str) -> list[Any]:
    """The overloads called so."""
    return [found for found in map(overload, names.split()) if found is not None]


def packets(names: str) -> frozenset[Any]:
    """The operators of ATen, whatever the overload."""
    return frozenset(getattr(torch.ops.aten, name) for name in names.split() if hasattr(torch.ops.aten, name))
