"""Compares a compiled function with eager: values, gradients, changed arguments, aliases, against an fp64 reference.

    from tests.differential import check, variants

    check(lambda x, w: (x @ w).relu().sum(), randn(5, 7), leaf(7, 3))
    for x in variants(3, 5): check(torch.softmax, x, -1)

The rule for floats: the error against fp64 is at most twice eager's plus a few units in the last place. Integers and
booleans are exact. NaN and infinity are where eager has them. This module must not know how the compiler works.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

ULPS = 4


class Different(AssertionError):
    """The compiled function is not equal to eager; each line says where and by how much."""


def leaf(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A random tensor that wants a gradient."""
    return torch.randn(size, dtype=dtype, requires_grad=True)


@dataclasses.dataclass
class Run:
    """What one run showed: outputs, arguments afterwards, gradients of the differentiable inputs, or an exception."""

    outputs: list[Any] = dataclasses.field(default_factory=list)
    arguments: list[Any] = dataclasses.field(default_factory=list)
    gradients: list[Any] = dataclasses.field(default_factory=list)
    exception: BaseException | None = None


def check(
    function: Callable[..., Any],
    *args: Any,
    compile: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    backward: bool = True,
    reference: bool = True,
    against_torch: bool = False,
    calls: int = 2,
    seed: int = 0,
    tolerance: float = 2.0,
) -> None:
    """Raise `Different` unless the compiled `function` shows what eager shows on copies of `args`.

    Args:
        compile: the compiler, `minicompile.compile` by default.
        backward: compare the gradients of a weighted sum of the float outputs too.
        reference: judge floats by an fp64 run; without it (or where fp64 does not work) by a tolerance of the dtype.
        against_torch: also run `torch.compile` and fail if minicompile's error is worse than twice its and eager's.
        calls: how often the compiled function is called; every call is compared.
        tolerance: how many times eager's error is allowed.
    """
    eager = run(function, args, backward, seed)
    exact = run_in_double(function, args, backward, seed) if reference and eager.exception is None else None
    compiled_function = (compile or default_compiler())(function)
    allowed_by = [eager]
    if against_torch:
        allowed_by.append(run(torch.compile(function), args, backward, seed))
    found: list[str] = []
    for number in range(calls):
        compiled = run(compiled_function, args, backward, seed)
        found.extend(f"call {number}: {text}" for text in differences(eager, compiled, exact, allowed_by, tolerance))
    if found:
        raise Different("\n".join(found))


def default_compiler() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`minicompile.compile` with eager's random numbers and without falling back when the compiler itself fails."""
    import minicompile  # here, so that the helper's own tests run without the package

    return lambda function: minicompile.compile(function, options={"fallback_random": True, "suppress_errors": False})


def run(function: Callable[..., Any], args: tuple[Any, ...], backward: bool, seed: int) -> Run:
    """Call the function on copies of the arguments and differentiate its outputs."""
    module = function if isinstance(function, torch.nn.Module) else None
    state = copy.deepcopy(module.state_dict()) if module is not None else None
    copies = copy_arguments(args)
    parameters = [value for value in module.parameters() if value.requires_grad] if module is not None else []
    for parameter in parameters:
        parameter.grad = None
    torch.manual_seed(seed)
    shown = Run()
    try:
        result = function(*copies)
        outputs = tensors_in(result)
        shown.outputs = [snapshot(value) for value in leaves(result)]
        if backward:
            shown.gradients = gradients(outputs, [*differentiable(copies), *parameters])
    except Exception as error:
        shown.exception = error
    shown.arguments = [snapshot(value) for value in leaves(copies)]
    if module is not None and state is not None:
        shown.arguments.extend(snapshot(value) for value in module.state_dict().values())
        module.load_state_dict(state)
    return shown


def run_in_double(function: Callable[..., Any], args: tuple[Any, ...], backward: bool, seed: int) -> Run | None:
    """The same in fp64, or `None` where that does not work."""
    target = copy.deepcopy(function).double() if isinstance(function, torch.nn.Module) else function
    shown = run(target, copy_arguments(args, double=True), backward, seed)
    return None if shown.exception is not None else shown


def copy_arguments(args: Any, double: bool = False) -> Any:
    """Arguments with fresh tensors: same strides, shared storage kept shared, one object kept one object."""
    memo: dict[int, torch.Tensor] = {}
    storages: dict[tuple[int, torch.dtype | None], torch.Tensor] = {}

    def duplicate(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in memo:
            storage = tensor.untyped_storage()
            empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            if double and tensor.is_floating_point():
                key = (storage._cdata, tensor.dtype)
                if key not in storages:
                    storages[key] = empty.set_(storage).double()
                view = storages[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            else:
                fresh = storages.setdefault(
                    (storage._cdata, None),
                    torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage.clone()),
                )
                view = empty.set_(fresh.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
            memo[id(tensor)] = view.detach().requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    return map_tensors(args, duplicate)


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """`change` applied to every tensor inside lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value


def leaves(value: Any) -> list[Any]:
    """Everything inside nested containers, in order."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors inside nested containers."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def differentiable(args: Any) -> list[torch.Tensor]:
    """The arguments that require grad, each once."""
    return list({id(tensor): tensor for tensor in tensors_in(args) if tensor.requires_grad}.values())


def snapshot(value: Any) -> Any:
    """A value that later calls cannot change."""
    if not isinstance(value, torch.Tensor):
        return value
    once = value.detach()[tuple(slice(1) if stride == 0 else slice(None) for stride in value.stride())]
    kept = torch.empty_strided(once.shape, once.stride(), dtype=value.dtype, device=value.device)
    return kept.copy_(once).expand(value.shape)


def gradients(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[Any]:
    """Gradients of a weighted sum of the outputs, so that no two elements can cancel."""
    used = list({id(value): value for value in outputs if value.requires_grad}.values())
    if not used or not inputs:
        return []
    weights = [
        torch.cos(torch.arange(value.numel(), device=value.device, dtype=torch.float64) + 1)
        .reshape(value.shape)
        .to(value.dtype)
        for value in used
    ]
    return [
        None if gradient is None else gradient.clone()  # the layout of expanded ones may differ
        for gradient in torch.autograd.grad(used, inputs, weights, allow_unused=True)
    ]


def differences(eager: Run, compiled: Run, exact: Run | None, allowed_by: list[Run], tolerance: float) -> Iterator[str]:
    """What the compiled run shows that eager does not."""
    if (eager.exception is None) != (compiled.exception is None) or (
        eager.exception is not None
        and (type(eager.exception) is not type(compiled.exception) or str(eager.exception) != str(compiled.exception))
    ):
        yield f"eager raises {eager.exception!r}, compiled {compiled.exception!r}"
        return
    for field in ("outputs", "arguments", "gradients"):
        first, second = getattr(eager, field), getattr(compiled, field)
        if len(first) != len(second):
            yield f"{field}: {len(first)} in eager, {len(second)} compiled"
            continue
        references = getattr(exact, field) if exact is not None and len(getattr(exact, field)) == len(first) else None
        for place, (one, other) in enumerate(zip(first, second, strict=True)):
            reference = references[place] if references is not None else None
            peers = [getattr(peer, field)[place] for peer in allowed_by if len(getattr(peer, field)) == len(first)]
            for text in value_differences(one, other, reference, peers, tolerance):
                yield f"{field}[{place}]: {text}"


def value_differences(eager: Any, compiled: Any, exact: Any, peers: list[Any], tolerance: float) -> Iterator[str]:
    """Differences of one output, argument or gradient."""
    if not isinstance(eager, torch.Tensor) or not isinstance(compiled, torch.Tensor):
        if type(eager) is not type(compiled) or not equal_values(eager, compiled):
            yield f"{eager!r} in eager, {compiled!r} compiled"
        return
    for name in ("dtype", "shape", "device"):
        if getattr(eager, name) != getattr(compiled, name):
            yield f"{name} is {getattr(eager, name)} in eager, {getattr(compiled, name)} compiled"
            return
    if meaningful_stride(eager) != meaningful_stride(compiled):
        yield f"stride is {eager.stride()} in eager, {compiled.stride()} compiled"
    if torch.equal(eager, compiled):
        return
    if not (eager.is_floating_point() or eager.is_complex()):
        wrong = eager != compiled
        yield f"{int(wrong.sum())} of {wrong.numel()} values differ, first at {wrong.nonzero()[0].tolist()}"
        return
    yield from float_differences(eager, compiled, exact, peers, tolerance)


def float_differences(
    eager: torch.Tensor, compiled: torch.Tensor, exact: Any, peers: list[Any], tolerance: float
) -> Iterator[str]:
    """NaN and infinity in their places, and the error of the rest within what is allowed."""
    finite = torch.isfinite(eager)
    if not torch.equal(finite, torch.isfinite(compiled)):
        yield "NaN or infinity in other places than in eager"
        return
    odd = (eager[~finite], compiled[~finite])
    if not torch.allclose(*odd, rtol=0, atol=0, equal_nan=True):
        yield "another NaN or infinity than in eager"
    wide = torch.complex128 if eager.is_complex() else torch.float64
    values = compiled.to(wide)[finite]
    expected = eager.to(wide)[finite]
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    ulp = torch.finfo(eager.dtype).eps * expected.abs().clamp(min=scale / 8)
    if (
        expected.numel()
        and isinstance(exact, torch.Tensor)
        and exact.shape == eager.shape
        and exact[finite].isfinite().all()
    ):
        reference = exact.to(wide)[finite]
        errors = [(peer.to(wide)[finite] - reference).abs().max() for peer in peers if isinstance(peer, torch.Tensor)]
        error, allowed = (values - reference).abs(), tolerance * torch.stack(errors).max() + ULPS * ulp
    else:
        error, allowed = (values - expected).abs(), 4 * ULPS * ulp
    if error.numel() and bool((error > allowed).any()):
        worst = int((error - allowed).argmax())
        yield (
            f"error {float(error[worst]):.3g} at flat index {worst} of the finite values, allowed {float(allowed[worst]):.3g} "
            f"(compiled {values[worst].item():.9g}, eager {expected[worst].item():.9g})"
        )


def equal_values(first: Any, second: Any) -> bool:
    """Whether two Python values are equal, floats to a few units in the last place of fp32."""
    if isinstance(first, float):
        return first == second or abs(first - second) <= 1e-6 * abs(first) or (first != first and second != second)
    return bool(first == second)


def meaningful_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of the dimensions that have more than one element."""
    if tensor.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def variants(
    *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
) -> Iterator[torch.Tensor]:
    """Tensors of one rank in every layout that breaks compilers: odd sizes, strided, expanded, offset, empty, special.

    The first is contiguous with `shape`; the last ones are empty and hold NaN, infinity, zeros and tiny values.
    """
    generator = torch.Generator().manual_seed(seed)

    def fresh(*sizes: int) -> torch.Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(sizes, generator=generator).to(device=device, dtype=dtype)
        high = 2 if dtype is torch.bool else 100
        return torch.randint(0, high, sizes, generator=generator).to(device=device, dtype=dtype)

    yield fresh(*shape)
    if not shape:
        yield fresh(3)[1]
        return
    yield fresh(*(2 * size + 1 for size in shape))
    yield fresh(*reversed(shape)).permute(*reversed(range(len(shape))))
    yield fresh(*(2 * size for size in shape))[tuple(slice(None, None, 2) for _ in shape)]
    yield fresh(*shape[:-1], shape[-1] + 3)[..., 3:]
    yield fresh(*shape[:-1], 1).expand(shape)
    yield fresh(*(1 for _ in shape))
    yield fresh(0, *shape[1:])
    if dtype.is_floating_point:
        special = fresh(*shape).flatten()
        values = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, torch.finfo(dtype).tiny]
        special[: len(values)] = torch.tensor(values, dtype=dtype, device=device)[: special.numel()]
        yield special.reshape(shape)
