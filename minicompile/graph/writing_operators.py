"""Custom operators that write their arguments (`mutates_args`): each gets a twin that writes copies and gives them.

A `copy_` behind the twin says what has changed, so that no later stage has to know of such operators. This module must not
look at what an operator does: its schema says which arguments it writes.
"""

import functools
import itertools
import re
from typing import Any

import torch
from torch import Tensor

from minicompile.graph import torch_interface
from minicompile.graph.operators import is_foreign

LIBRARY = torch.library.Library("minicompile_copies", "DEF")
NUMBERS = itertools.count()  # an operator may be defined anew under its name


def written_arguments(operator: Any) -> tuple[str, ...]:
    """Which arguments an operator of somebody else's writes; none where something else than tensors is written or returned."""
    if not is_foreign(operator):
        return ()
    written = [argument for argument in operator._schema.arguments if argument.is_write]
    plain = all(str(argument.type) in ("Tensor", "Optional[Tensor]") for argument in written)
    values = all(str(part.type) == "Tensor" and part.alias_info is None for part in operator._schema.returns)
    return tuple(argument.name for argument in written) if plain and values else ()


def call_on_copies(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator's result, after its arguments have changed; a `RuntimeError` for what only eager can do."""
    given = dict(zip((argument.name for argument in operator._schema.arguments), args)) | kwargs
    written = tuple(name for name in written_arguments(operator) if given.get(name) is not None)
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise RuntimeError(f"{operator} writes its arguments and is differentiated")
    storages = [torch_interface.storage_key(tensor) for tensor in tensors]
    if any(storages.count(torch_interface.storage_key(given[name])) > 1 for name in written):
        raise RuntimeError(f"{operator} writes what another argument of it reads")
    if any(is_cast(operator, device) for device in {tensor.device.type for tensor in tensors}):
        raise RuntimeError(f"{operator} writes its arguments and casts them under autocast")
    found = twin(operator, written)(**given)
    found = list(found) if isinstance(found, (tuple, list)) else [] if found is None else [found]
    for name in reversed(written):
        given[name].copy_(found.pop())
    return tuple(found) if len(found) > 1 else found[0] if found else None


def is_cast(operator: Any, device: str) -> bool:
    """Whether an operator has a rule of its own for the autocast that is in effect."""
    key = f"Autocast{device.upper()}"
    return torch.is_autocast_enabled(device) and torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)


@functools.cache
def twin(operator: Any, written: tuple[str, ...]) -> Any:
    """An operator of the same arguments that gives the operator's results, and behind them what it writes."""
    schema = operator._schema
    arguments = re.sub(r"\(\w+!\)", "", str(schema).split("(", 1)[1].rsplit(") ->", 1)[0])
    name = f"{schema.name.replace('::', '_')}_{next(NUMBERS)}"
    LIBRARY.define(f"{name}({arguments}) -> ({', '.join(['Tensor'] * (len(schema.returns) + len(written)))})")

    def run(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip((argument.name for argument in schema.arguments), args)) | kwargs
        for each in written:
            like = given[each]
            given[each] = like.new_empty_strided(like.shape, like.stride()).copy_(like)
        results = operator(**given)
        results = results if isinstance(results, tuple) else () if results is None else (results,)
        found = (*results, *(given[each] for each in written))
        return found if len(found) > 1 else found[0] if found else None

    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"minicompile_copies::{name}", run, lib=LIBRARY)
    return getattr(torch.ops.minicompile_copies, name).default
