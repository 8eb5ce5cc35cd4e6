"""Custom operators that write their arguments (`mutates_args`): each gets a twin that writes copies and gives them.

A `copy_` behind the twin says what has changed, so that no later stage has to know of such operators. This module must not
look at what an operator does: its schema says which arguments it writes.
"""

import functools
import re
from typing import Any

import torch
from torch import Tensor

from minicompile.graph import torch_interface
from minicompile.graph.opaque_backward import overload_of

LIBRARY = torch.library.Library("minicompile_copies", "DEF")


def written_places(target: Any) -> tuple[int, ...]:
    """Which arguments an operator of somebody else's writes; none where something else than tensors is written or returned."""
    operator = overload_of(target)
    if not isinstance(operator, torch._ops.OpOverload) or operator.namespace in ("aten", "prims", "minicompile"):
        return ()
    schema = operator._schema
    written = [place for place, argument in enumerate(schema.arguments) if argument.is_write]
    plain = all(str(schema.arguments[place].type) == "Tensor" for place in written)
    values = all(str(part.type) == "Tensor" and part.alias_info is None for part in schema.returns)
    return tuple(written) if plain and values else ()


def call_on_copies(target: Any, written: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator's result, after its arguments have changed; a `RuntimeError` for what only eager can do."""
    operator = overload_of(target)
    rest = [kwargs.get(argument.name, argument.default_value) for argument in operator._schema.arguments[len(args) :]]
    given = [*args, *rest]
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise RuntimeError(f"{operator} writes its arguments and is differentiated")
    storages = [torch_interface.storage_key(tensor) for tensor in tensors]
    if any(storages.count(torch_interface.storage_key(given[place])) > 1 for place in written):
        raise RuntimeError(f"{operator} writes what another argument of it reads")
    found = twin(operator)(*given)
    found = list(found) if isinstance(found, (tuple, list)) else [found]
    for place in reversed(written):
        given[place].copy_(found.pop())
    return tuple(found) if len(found) > 1 else found[0] if found else None


@functools.cache
def twin(operator: Any) -> Any:
    """An operator of the same arguments that gives the operator's results, and behind them what it writes."""
    schema, written = operator._schema, written_places(operator)
    arguments = re.sub(r"\(\w+!\)", "", str(schema).split("(", 1)[1].rsplit(") ->", 1)[0])
    name = f"{schema.name.replace('::', '_')}_{operator._overloadname}"
    LIBRARY.define(f"{name}({arguments}) -> ({', '.join(['Tensor'] * (len(schema.returns) + len(written)))})")

    def run(*args: Any) -> Any:
        given = list(args)
        for place in written:
            like = given[place]
            given[place] = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device).copy_(like)
        results = operator(*given)
        results = results if isinstance(results, tuple) else () if results is None else (results,)
        found = (*results, *(given[place] for place in written))
        return found if len(found) > 1 else found[0]

    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"minicompile_copies::{name}", run, lib=LIBRARY)
    return getattr(torch.ops.minicompile_copies, name).default
