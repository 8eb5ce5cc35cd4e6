"""Random chains of views, slices, shifts, pads, scatters and writes into views, at sizes that vary: eager against compiled.

    python -m tests.end_to_end.index_programs 0:500        # prints what differs; exit status 1 if anything does

What is exercised is index arithmetic: each program is one function of a tensor of one to three dims, called at three
sizes, with gradients of all results in most cases. A line is kept if eager runs it.
"""

from __future__ import annotations

import dataclasses
import linecache
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import minicompile


def table(text: str) -> list[str]:
    """Templates, separated by bars."""
    return [entry.strip() for entry in text.replace("\n", " ").split(" | ")]


# {t} any tensor, {0} the first one of the line, {d} {e} dims of it, {x} a number
VIEWS = table("""
{t}.select({d}, -1) | {t}.select({d}, 0) | {t}[1:] | {t}[:-1] | {t}[..., 1:] | {t}[..., :-1] | {t}[..., ::2] | {t}[::2] | {t}[..., 1::2] |
{t}.flip({d}) | {t}.roll(1, {d}) | {t}.roll(-2, {d}) | F.pad({t}, (1, 2)) | F.pad({t}, (-1, 2)) | F.pad({t}, (0, -1)) | F.pad({t}, (0, 0, 1, 0)) |
{t}.transpose({d}, {e}) | {t}.reshape(-1) | {t}.flatten(-2) | {t}.flatten(0, 1) | {t}.unsqueeze({d}) | {t}.unsqueeze(-1) | {t}.narrow({d}, 1, 2) |
torch.cat([{t}, {t}], {d}) | torch.cat([{t}, {t}.flip({d})], {d}) | torch.stack([{t}, {t} * 2], {d}) | {t}.expand(2, *{0}.shape) |
{t}.repeat(*[2] * {0}.dim()) | {t}.repeat_interleave(2, {d}) | {t}.tril() | {t}.triu(1) | {t}.diagonal() | {t}.diag_embed() | {t}.unfold({d}, 2, 1) |
{t}.reshape({0}.shape[0], -1) | {t}.reshape(-1, {0}.shape[-1]) | {t}.movedim(0, -1) | {t}.chunk(2, {d})[-1] | {t}.split(2, {d})[-1] |
{t}.unbind({d})[-1] | {t}[torch.arange({0}.shape[0] - 1, -1, -1)] | {t}.index_select({d}, torch.arange({0}.shape[{d}]) // 2) |
{t}.gather({d}, ({t} > 0).long()) | {t}[..., torch.tensor([0, -1])] | {t}[:, None] | {t}[-1] | {t}[..., -1] | {t}[..., -2:] | {t}[-3:] | {t}.rot90() |
{t}.clone() | {t}.mT | {t}.squeeze() | {t}.unflatten(0, (-1, 1)) | {t}.diff(dim={d}) | torch.where(torch.arange({0}.shape[-1]) > 2, {t}, -1.0) |
{t} * torch.arange({0}.shape[-1]) | torch.zeros_like({t}).slice_scatter({t}[1:], 0, 1) | {t}.select_scatter({t}[0] * 2, 0, -1) |
torch.zeros_like({t}).index_add(0, torch.arange({0}.shape[0]) // 2, {t}) | {t}.diagonal_scatter({t}.diagonal() * 3)
""")
WRITES = table("""
{t}[0] = {x} | {t}[-1] = {x} | {t}[..., -1] = {x} | {t}[..., 0] += {x} | {t}[1:] *= {x} | {t}[:-1] = {t}[1:].clone() | {t}[..., ::2] = 0 |
{t}[..., 1:] += {t}[..., :-1].clone() | {t}.diagonal().mul_({x}) | {t}.transpose(0, -1)[-1] = {x} | {t}.narrow({d}, 1, 1).zero_() |
{t}.view(-1)[-1] = {x} | {t}.view(-1)[::3] = {x} | {t}[torch.arange({0}.shape[0]) - 1] *= {x} | {t}.select({d}, -1).copy_({t}.select({d}, 0))
""")
FOLDS = table("""
{t}.sum({d}) | {t}.mean(-1, keepdim=True) | {t}.cumsum({d}) | {t}.softmax({d}) | {t}.amax({d}) | {t}.var({d}) | {t}.cumsum(-1)[..., -1] |
F.layer_norm({t}, {0}.shape[-1:]) | {t} @ {t}.mT | {t}.sort({d})[0]
""")
POINTWISE = table("{t} + {t} | {t} * {t} | {t} - {t} | {t} * {x} | {t}.tanh() | torch.where({t} > 0, {t}, {t} * {x}) | {t}.abs()")
NAMES = {"torch": torch, "F": F}


@dataclasses.dataclass
class Program:
    """A random function of a tensor with `dims` dims, as text."""

    seed: int
    text: str
    dims: int

    def function(self) -> Callable[[Tensor], Any]:
        """The function, with lines that tracebacks find."""
        name, namespace = f"<index program {self.seed}>", dict(NAMES)
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(True), name)
        exec(compile(self.text, name, "exec"), namespace)
        return namespace["program"]  # type: ignore[return-value]  # the text defines it

    def argument(self, longer: int) -> Tensor:
        """The tensor at one of the sizes."""
        torch.manual_seed(self.seed + longer)
        return torch.randn([4 + longer, 5 + longer, 6 + longer][: self.dims])


def made(seed: int) -> Program:
    """The program of a seed."""
    choose = random.Random(seed)
    program = Program(seed, "", choose.choice((1, 2, 2, 2, 3, 3)))
    lines: list[str] = []
    values: dict[str, Any] = {"x": program.argument(0)}
    for number in range(40):
        if len(lines) >= 8:
            break
        kind = choose.choices((VIEWS, WRITES, FOLDS, POINTWISE), (6, 2, 1, 2))[0]
        first = choose.choice([*list(values)[-3:], "x"])
        dims = max(values[first].dim(), 1)
        line = choose.choice(kind).replace("{0}", first).replace("{d}", str(choose.randint(-1, dims - 1)))
        line = line.replace("{e}", str(choose.randint(0, dims - 1))).replace("{x}", choose.choice(("2.0", "0.5", "-1.0")))
        line = line.replace("{t}", first, 1)
        while "{t}" in line:
            line = line.replace("{t}", first if choose.random() < 0.7 else choose.choice(list(values)), 1)
        fresh = first if kind is WRITES else f"v{number}"
        if kind is not WRITES:
            line = f"{fresh} = {line}"
        elif first == "x":
            continue
        found: dict[str, Any] = {**NAMES, "x": program.argument(0).clone()}
        try:
            exec("\n".join([*lines, line]), found)
        except Exception:  # a line that eager refuses is not kept
            continue
        value = found[fresh]
        if value.is_floating_point() and 0 < value.numel() < 4000 and value.dim() < 5 and value.abs().max() < 1e4:
            lines.append(line)
            values = {name: each for name, each in found.items() if isinstance(each, Tensor)}
    results = [list(values)[-1], *(name for name in list(values)[1:-1] if choose.random() < 0.3)]
    body = "".join(f"    {line}\n" for line in lines)
    program.text = f"def program(x):\n{body}    return ({', '.join(results)},)\n"
    return program


def outcome(function: Callable[[Tensor], Any], x: Tensor, gradient: bool) -> Any:
    """The results and the gradient; the kind of error if one is raised."""
    x = x.clone().requires_grad_(gradient)
    try:
        results = function(x)
        watched = [each for each in results if each.requires_grad]
        if watched:
            numbers = torch.Generator().manual_seed(3)
            torch.autograd.backward(watched, [torch.randn(each.shape, generator=numbers) for each in watched])
    except Exception as error:
        return type(error)
    return [each.detach() for each in results], x.grad


def difference(seed: int) -> str:
    """What differs between eager and compiled; nothing if all is well, or if eager refuses the program."""
    program, choose = made(seed), random.Random(seed)
    gradient, dynamic = choose.random() < 0.75, choose.choice((True, True, None, False))
    function = program.function()
    compiled = minicompile.compile(function, dynamic=dynamic)
    for longer in (0,) if dynamic is False else (0, 2, 1):
        expected, found = (outcome(each, program.argument(longer), gradient) for each in (function, compiled))
        if isinstance(expected, type):
            continue
        try:
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3, equal_nan=True)
        except Exception as error:
            return f"--- seed {seed}, dynamic={dynamic}, gradient={gradient}, {longer} longer\n{program.text}{error}"
    return ""


def main() -> int:
    """The command line."""
    warnings.simplefilter("ignore")
    start, stop = map(int, sys.argv[1].split(":"))
    wrong = [text for text in map(difference, range(start, stop)) if text]
    print(*wrong, f"{len(wrong)} of {stop - start} differ", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
