"""The calls of a random program: the first, the same with other values, then other sizes, layouts, dtypes, sharing."""

from __future__ import annotations

import random
from typing import Any

import torch

from tests.conformance.catalogue import Call, call
from tests.random_programs import setting

FLOATS = (torch.float32, torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
OTHERS = (torch.int64, torch.int64, torch.int32, torch.uint8, torch.int16, torch.int8, torch.bool)
LAYOUTS = ("plain", "plain", "plain", "transposed", "strided", "offset", "expanded", "leaf")
SHARING = ("none", "none", "none", "none", "view", "same", "overlap", "list")


def calls(seed: int, language: bool, box: Any = setting.Box) -> list[Call]:
    """The calls of one program; `box` is its own class of that name."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    if language:
        return [simple_arguments(rng, number, box) for number in range(4)]
    dtypes = [rng.choice(FLOATS), rng.choice(FLOATS + OTHERS), rng.choice(FLOATS + OTHERS)]
    layouts = [rng.choice(LAYOUTS) for _ in range(3)]
    share = rng.choice(SHARING)
    sizes = (rng.choice([1, 2, 3, 4]), rng.choice([2, 3, 4]))
    others = (rng.choice([2, 3, 5]), rng.choice([1, 3, 4, 6]))
    small = (rng.choice([0, 2, 4]), rng.choice([2, 5]))
    made = [arguments(rng, sizes, dtypes, layouts, share, box) for _ in range(2)]
    made.append(arguments(rng, others, dtypes, layouts, share, box))
    made.append(arguments(rng, small, dtypes, [rng.choice(LAYOUTS) for _ in range(3)], rng.choice(SHARING), box))
    made.append(arguments(rng, sizes, [rng.choice(FLOATS), *dtypes[1:]], layouts, share, box))
    return made


def simple_arguments(rng: random.Random, number: int, box: Any) -> Call:
    """Small fp32 tensors of one or two layouts; structure, numbers and identities change from call to call."""
    rows = 2 if number < 2 else rng.choice([1, 2, 3, 4])
    x0, x1, x2 = (plain(rng, rows, 2), plain(rng, 2), plain(rng, 2))
    if rng.random() < 0.2:
        x0.requires_grad_()
    share = rng.random()
    if share < 0.1:
        x2 = x1
    elif share < 0.15:
        x1 = x0.detach()[0]
    items = [plain(rng, 2) for _ in range(3 if number < 3 else rng.choice([1, 2, 3, 4]))]
    if rng.random() < 0.2:
        items[0] = x1
    table = {"a": plain(rng, 2), "b": x2 if rng.random() < 0.2 else plain(rng, 2)}
    if number == 3 and rng.random() < 0.5:
        table = {"b": table["b"], "p": plain(rng, 2), "a": table["a"]}
    made = box(plain(rng, 2), plain(rng, 2), plain(rng, 2))
    return call(x0, x1, x2, items, table, made, rng.choice([0, 1, 2, 2, 3]), rng.random() < 0.6)


def plain(rng: random.Random, *shape: int) -> torch.Tensor:
    """A contiguous fp32 tensor of small integers and halves."""
    values = torch.randint(-6, 7, shape).float()
    return values / 2 if rng.random() < 0.5 else values


def arguments(
    rng: random.Random, sizes: tuple[int, int], dtypes: list[torch.dtype], layouts: list[str], share: str, box: Any
) -> Call:
    """One call's arguments; `share` says which tensors share memory."""
    shapes = [sizes, (sizes[1],), rng.choice([sizes, (), (sizes[0], 1), (2, *sizes)])]
    tensors = [tensor(rng, *given) for given in zip(shapes, dtypes, layouts, strict=True)]
    if share == "view" and tensors[0].dim() and tensors[0].shape[0]:
        tensors[1] = tensors[0].detach()[-1]
    elif share == "same":
        tensors[2] = tensors[0]
    elif share == "overlap" and tensors[0].dim() and tensors[0].shape[0] > 1:
        tensors[2] = tensors[0].detach()[1:]
    items = [tensor(rng, (sizes[1],), dtypes[0], "plain"), tensor(rng, (sizes[1],), dtypes[1], "plain")]
    if share == "list":
        items[1] = tensors[1]
    table = {"a": tensor(rng, (sizes[1],), torch.float32, "plain")}
    return call(*tensors, items, table, box(table["a"], *items), rng.randint(0, 3), rng.random() < 0.5)


def tensor(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> torch.Tensor:
    """A tensor of small exact values, now and then with a NaN or an infinity."""

    def fresh(*size: int) -> torch.Tensor:
        values = torch.randint(-8, 9, size)
        if not dtype.is_floating_point:
            return (values // 2).to(dtype)
        values = (values / 4).to(dtype)
        if rng.random() < 0.1 and values.numel():
            values.view(-1)[rng.randrange(values.numel())] = rng.choice([float("nan"), float("inf"), -0.0])
        return values

    if layout == "transposed" and len(shape) > 1:
        return fresh(*reversed(shape)).permute(*reversed(range(len(shape))))
    if layout == "strided" and shape:
        return fresh(*shape[:-1], 2 * shape[-1])[..., ::2]
    if layout == "offset" and shape:
        return fresh(shape[0] + 1, *shape[1:])[1:]
    if layout == "expanded" and len(shape) > 1:
        return fresh(1, *shape[1:]).expand(shape)
    return fresh(*shape).requires_grad_(layout == "leaf" and dtype.is_floating_point)
