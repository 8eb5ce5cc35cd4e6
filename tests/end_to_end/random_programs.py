"""Random tensor programs, eager against compiled: values, gradients, strides, aliases, versions, exceptions.

    python -m tests.end_to_end.random_programs 0:1000        # prints what differs, shrunk; exit status 1 if anything does
    python -m tests.end_to_end.random_programs 17 --show     # one program's text

A program is written line by line; each line is executed as it is written and kept if it works (a few that raise are kept
as last lines). Operators come from the table below and from PyTorch's operator database. Inputs have odd layouts and share
memory; they are written in place, and read and differentiated in several ways. Floats are judged against an fp64 run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import linecache
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

import minicompile
from tests.differential import leaves, meaningful_stride, snapshot, value_differences
from tests.end_to_end.operator_verdict import CLEAN_REFUSALS, UNINITIALISED, TookTooLong, time_limit

FLOATS = ("float32",) * 6 + ("float64", "bfloat16", "float16")
OTHERS = ("int64", "int64", "int32", "uint8", "int8", "bool")
LAYOUTS = ("plain", "plain", "plain", "transposed", "strided", "offset", "expanded", "flipped", "channels_last", "inner")
MODES = ("none",) * 7 + ("no_grad", "inference", "autocast")
WAYS = ("backward", "backward", "accumulate", "subset", "retain", "hooks", "one output")


def table(text: str) -> list[str]:
    """Templates, separated by bars."""
    return [entry.strip() for line in text.strip().splitlines() for entry in line.split(" ; ")]


# {t} any tensor, {f} a float one, {b} an integer or bool one, {d} a dimension of the last one, {i} {n} {x} numbers, {k} a dtype
POINTWISE = table("""
{t} + {t} ; {f} * {t} ; {t} - {t} ; {f} / {t} ; {t} * {x} ; {i} - {t} ; {t} / {n} ; {f} + {f}.mean() ; {t} * {t}.sum() ; {t} + torch.tensor({x}) ; {t} * torch.tensor({i})
{f}.exp() ; {f}.tanh() ; {f}.sigmoid() ; {f}.relu() ; F.gelu({f}) ; F.silu({f}) ; F.softplus({f}) ; {f}.abs().sqrt() ; {f}.square() ; {f} ** 2 ; {f}.abs() ** {x} ; {f}.sin() ; {f}.rsqrt()
F.gelu({f}, approximate="tanh") ; F.leaky_relu({f}, {x}) ; F.elu({f}) ; F.hardtanh({f}) ; {f}.clamp(-1, {x}) ; {t}.clamp(min={i}) ; torch.where({t} > 0, {f}, {f}) ; torch.where({t} > {x}, {f}, {x})
torch.maximum({f}, {f}) ; torch.minimum({t}, {t}) ; {t} > {t} ; {t} == {i} ; ~{b} ; {b} & {b} ; {b} // {n} ; {b} % {n} ; {b} << 1 ; -{f} ; abs({t}) ; {f}.to({k}) ; {t}.to({k}) ; {t}.float() ; {t}.type_as({t})
torch.lerp({f}, {f}, {x}) ; torch.addcmul({f}, {f}, {f}, value={x}) ; {f}.masked_fill({t} > 0, {x}) ; torch.atan2({f}, {f}) ; {f}.sign() ; torch.nan_to_num({f}) ; {f}.log1p() ; {f}.erf() ; {f}.expm1()
F.dropout({f}, 0.5) ; torch.rand_like({f}) * {f} ; torch.full_like({t}, {i}) + {t} ; torch.add({f}, {f}, alpha={x}) ; torch.logaddexp({f}, {f}) ; F.threshold({f}, 0.1, {x}) ; torch.hypot({f}, {f}) ; {f}.detach() * {f}
{t} // {x} ; {t} % {n} ; torch.fmod({t}, {n}) ; torch.copysign({f}, {t}) ; {t}.bool() ; {t}.logical_not() ; torch.logical_and({t}, {t}) ; torch.heaviside({f}, {f}) ; torch.ldexp({f}, {b}) ; {f}.frac() ; 1 / {f} ; {x} ** {f}
""")
FOLDS = table("""
{t}.sum({d}) ; {t}.sum() ; {f}.mean({d}) ; {f}.mean({d}, keepdim=True) ; {f}.softmax({d}) ; {f}.log_softmax({d}) ; {f}.logsumexp({d}) ; {f}.var({d}) ; {f}.std() ; {f}.norm() ; {f}.norm(dim={d}) ; {f}.amax({d}) ; {f}.max({d})[0]
{f}.max({d}, keepdim=True)[1] ; {t}.argmax({d}) ; {f}.cumsum({d}) ; {t}.cumsum({d}) ; {f}.cumprod({d}) ; {f}.prod({d}) ; {t}.any({d}) ; {t}.all() ; {t}.sum({d}, dtype={k}) ; F.layer_norm({f}, {f0}.shape[-1:]) ; F.normalize({f}, dim={d})
{f}.logcumsumexp({d}) ; {f}.sort({d})[0] ; {f}.topk(1, {d})[0] ; {f}.median({d})[0] ; {f}.var_mean({d})[1] ; {f}.aminmax()[0] ; {f}.sum((0, -1)) ; {f}.mean((0, 1), keepdim=True) ; {f}.std({d}, keepdim=True) ; F.rms_norm({f}, {f0}.shape[-1:])
{f} @ {f} ; {f} @ {f}.mT ; {f}.mT @ {f} ; torch.einsum("...i,...i->...", {f}, {f}) ; F.linear({f}, {f}) ; F.cosine_similarity({f}, {f}, {d}) ; F.mse_loss({f}, {f}) ; F.cross_entropy({f}, {f}.argmax(1)) ; {f}.cummax({d})[0] ; F.smooth_l1_loss({f}, {f})
F.scaled_dot_product_attention({f}, {f}, {f}) ; F.group_norm({f}, 1) ; F.batch_norm({f}, None, None, training=True) ; F.instance_norm({f}) ; F.max_pool2d({f}, 2) ; F.avg_pool2d({f}, 2, 1) ; F.adaptive_avg_pool2d({f}, 1) ; F.glu({f}, {d})
F.conv2d({f}, {f}, padding=1) ; F.conv1d({f}, {f}) ; F.interpolate({f}, scale_factor=2) ; F.pixel_unshuffle({f}, 1) ; {f}.diff(dim={d}) ; torch.trapezoid({f}, dim={d}) ; {f}.dist({f}) ; torch.cdist({f}, {f}) ; F.max_pool1d({f}, 2) ; F.softmin({f}, {d})
torch.addmm({f}, {f}, {f}, beta={x}, alpha={x}) ; torch.baddbmm({f}, {f}, {f}) ; torch.bmm({f}, {f}) ; torch.mv({f}, {f}) ; torch.outer({f}.flatten(), {f}.flatten()) ; torch.dot({f}.flatten(), {f}.flatten()) ; F.nll_loss({f}, {f}.argmax(1)) ; {t}.count_nonzero({d})
""")
VIEWS = table("""
{t}.t() ; {t}.transpose({d}, -1) ; {t}.mT ; {t}[1:] ; {t}[..., ::2] ; {t}[0] ; {t}[-1] ; {t}[:, None] ; {t}.view(-1) ; {t}.reshape(-1) ; {t}.flatten() ; {t}.unsqueeze({d}) ; {t}.squeeze() ; {t}.expand(2, *{t0}.shape) ; {t}.narrow({d}, 0, 1)
{t}.select({d}, -1) ; {t}.chunk(2, {d})[-1] ; {t}.split(1, {d})[0] ; {t}.unbind({d})[-1] ; {t}.diagonal() ; {t}.movedim(0, -1) ; {t}.detach() ; {t}.view_as({t}) ; {t}.permute(*reversed(range({t0}.dim()))) ; {t}.as_strided((2,), (1,), 1)
{t}.unfold({d}, 2, 1) ; {t}.flip({d}) ; {t}.roll(1, {d}) ; {t}.contiguous() ; {t}.clone() ; {t}.clone(memory_format=torch.contiguous_format) ; {t}.repeat(2, *[1] * {t0}.dim()) ; {t}.repeat_interleave(2, {d}) ; {t}.tile(2) ; {t}.broadcast_to(2, *{t0}.shape)
torch.cat([{t}, {t}], {d}) ; torch.stack([{t}, {t}], {d}) ; torch.cat([{t}, {t}, {t}]) ; F.pad({t}, (1, {n})) ; F.pad({f}, (-1, 2), value={x}) ; {t}.tril() ; {t}.triu({i}) ; {t}.gather({d}, {b} % 1) ; {t}.index_select({d}, torch.tensor([0, 0])) ; {t}[torch.tensor([0, -1])]
{t}[torch.arange({t0}.shape[0]), 0] ; {t}.take_along_dim({t}.argsort({d}), {d}) ; {f}.scatter({d}, {b} % 1, {x}) ; {f}.index_add({d}, torch.tensor([0]), {f}) ; {f}.scatter_add({d}, {b} % 1, {f}) ; {t}.ravel() ; {t}.swapaxes(0, -1) ; {t}.rot90() ; {t}.view({t0}.shape)
{t}.to(memory_format=torch.channels_last) ; {t}.contiguous(memory_format=torch.channels_last) ; {t}.reshape(-1, 2) ; {t}.unflatten({d}, (-1, 1)) ; {t}.expand_as({t}) ; {t}[{t0} > 0] ; {t}.masked_select({t} > 0) ; {t}.as_strided({t0}.shape, {t0}.stride()) ; {t}.new_zeros(2, 3) + 1
{t}.data ; {t}.real ; {t}[...] ; {t}[None, ..., 0] ; torch.zeros_like({t}) ; torch.ones_like({t}) * {t} ; torch.empty_like({t}).fill_({i}) ; {t}.hsplit(1)[0] ; {f}.index_copy({d}, torch.tensor([0]), {f}) ; {t}.diag() ; {t}.squeeze({d}) ; {f}.slice_scatter({f}[:1], 0, 0, 1) ; {f}.select_scatter({f}[0], 0, 0)
""")
WRITES = table("""
{t}.add_({t}) ; {t}.mul_({x}) ; {t}.sub_({i}) ; {t}.zero_() ; {t}.fill_({x}) ; {t}.copy_({t}) ; {t}[0] = {x} ; {t}[1:] = {t} ; {t}[..., 0] += {x} ; {t} += {t} ; {t} *= 2 ; {f}.exp_() ; {f}.relu_() ; {f}.sigmoid_() ; {f}.tanh_() ; {t}.clamp_(-1, 1) ; {t}.t_() ; {t}.unsqueeze_(0)
{t}.masked_fill_({t} > 0, {x}) ; {t}[{t} > 0] = {x} ; {t}.index_add_({d}, torch.tensor([0]), {t}) ; {t}.scatter_({d}, {b} % 1, {i}) ; {t}[torch.tensor([0, 0])] += 1 ; {t}.index_put_((torch.tensor([0, 0]),), {t}, accumulate=True) ; {t}.transpose_(0, -1) ; {t}.view(-1)[0] = {i}
torch.add({t}, {t}, out={t}) ; torch.mul({t}, {x}, out={t}) ; torch.sum({t}, {d}, out={t}) ; torch.exp({f}, out={f}) ; torch.cat([{t}, {t}], out={t}) ; torch.matmul({f}, {f}, out={f}) ; {t}.detach().mul_(2) ; {t}.data.add_(1) ; {t}.diagonal().fill_({i}) ; {t}.select({d}, 0).copy_({t})
{t}.squeeze_() ; {f}.addcmul_({f}, {f}) ; {f}.lerp_({f}, {x}) ; {t}.cumsum_({d}) ; {t}.tril_() ; {t}.detach_() ; {f}.requires_grad_(False) ; {f}.div_({n}) ; {t}.swapdims_(0, 1) ; {t}.index_fill_({d}, torch.tensor([0]), {i}) ; {t}.round_() ; {t}.neg_() ; {f}.pow_(2) ; F.relu({f}, inplace=True) ; F.dropout({f}, 0.3, inplace=True)
{t}.flatten()[0] = {i} ; {t}.t().mul_({x}) ; {t}[::2].add_({x}) ; {t}.unsqueeze(0).add_({t}) ; {t}.reshape(-1).add_(1) ; {t}.expand_as({t}).mul_(2) ; {t}.narrow({d}, 0, 1).zero_() ; torch._foreach_add_([{t}, {t}], 1) ; {t}.logical_not_() ; {f}.addmm_({f}, {f}) ; {f}.uniform_() ; {f}.normal_() ; {t}.set_({t})
""")
HEADS = ("with torch.no_grad():", "with torch.enable_grad():", "with torch.autocast('cpu', torch.bfloat16):", "with torch.autocast('cpu', enabled=False):")
CLEAN = (*CLEAN_REFUSALS, "modified by an inplace operation", "is not implemented")
RAISING_KERNELS = ("nn.functional.binary_cross_entropy",)
RANDOM_OPERATORS = (*UNINITIALISED, *RAISING_KERNELS, "new_full")


@dataclasses.dataclass
class Program:
    """A random program: lines that make the inputs, lines of the function, what it returns, how it is called."""

    seed: int
    inputs: list[str]
    lines: list[str]
    returned: list[str]
    mode: str
    way: str
    options: dict[str, Any]
    other_sizes: bool

    @property
    def text(self) -> str:
        """The module's source."""
        names = [line.split(" = ")[0] for line in self.inputs]
        body = "\n".join(f"    {line}" for line in self.lines)
        made = "\n".join(f"    {line}" for line in self.inputs)
        return (f"def inputs(fresh, sample, a, b, c):\n{made}\n    return {', '.join(names)},\n\n"
                f"def program({', '.join(names)}):\n{body}\n    return {', '.join(self.returned)},\n")  # fmt: skip

    def functions(self, double: bool = False) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """What makes the inputs, and the function; in fp64 if asked."""
        text = widened(self.text) if double else self.text
        name = f"<random program {self.seed}{' in fp64' if double else ''}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        scope = namespace()
        exec(compile(text, name, "exec"), scope)
        return scope["inputs"], scope["program"]


def widened(text: str) -> str:
    """The program with every float dtype fp64, and no autocast."""
    text = re.sub(r"torch\.(float32|float16|bfloat16)", "torch.float64", text).replace(".float()", ".double()")
    return text.replace("torch.autocast('cpu', torch.float64)", "torch.autocast('cpu', enabled=False)")


def namespace() -> dict[str, Any]:
    """What a program's text may name."""
    return {"torch": torch, "F": torch.nn.functional, "OPS": [op.op for op in op_db]}


class Inputs:
    """Makes tensors from descriptions, the same ones each time; remembers the leaves."""

    def __init__(self, seed: int, double: bool = False) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.double = double
        self.leaves: list[torch.Tensor] = []

    def fresh(self, shape: tuple[int, ...], dtype: torch.dtype, layout: str, grad: bool = False) -> torch.Tensor:
        """A tensor of a layout."""
        made = self.laid_out(shape, dtype, layout)
        if grad:
            self.leaves.append(made.requires_grad_())
        return made

    def laid_out(self, shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> torch.Tensor:
        """Values in a layout; plain where the layout needs more dimensions."""
        dims = len(shape)
        if layout == "transposed" and dims > 1:
            return self.values(shape[::-1], dtype).permute(*reversed(range(dims)))
        if layout == "inner" and dims > 2:
            return self.values((shape[0], shape[2], shape[1], *shape[3:]), dtype).transpose(1, 2)
        if layout == "strided" and dims:
            return self.values((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
        if layout == "offset" and dims:
            return self.values((shape[0] + 2, *shape[1:]), dtype)[2:]
        if layout == "expanded" and dims > 1:
            return self.values((*shape[:-1], 1), dtype).expand(shape)
        if layout == "flipped" and dims:
            return self.values(shape, dtype).flip(0)
        made = self.values(shape, dtype)
        return made.contiguous(memory_format=torch.channels_last) if layout == "channels_last" and dims == 4 else made

    def values(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Values that the dtype holds."""
        if dtype.is_floating_point:
            return torch.randn(shape, generator=self.generator).to(dtype).to(torch.float64 if self.double else dtype)
        if dtype == torch.bool:
            return torch.rand(shape, generator=self.generator) > 0.5
        return torch.randint(0 if dtype == torch.uint8 else -4, 5, shape, generator=self.generator).to(dtype)

    def sample(self, operator: int, dtype: torch.dtype, number: int, position: int, grad: bool = False) -> torch.Tensor:
        """A tensor of a sample of the operator database."""
        found = sample_leaves(operator, dtype, number)[position].detach().clone()
        if self.double and found.is_floating_point():
            found = found.double()
        return self.keep(found.requires_grad_()) if grad else found

    def keep(self, leaf: torch.Tensor) -> torch.Tensor:
        """A leaf, remembered."""
        self.leaves.append(leaf)
        return leaf


def samples(operator: int, dtype: torch.dtype, number: int) -> Any:
    """A sample's positional arguments and keywords, always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(number)
        random_state = random.getstate()
        random.seed(number)
        for count, sample in enumerate(op_db[operator].sample_inputs("cpu", dtype)):
            if count == number:
                break
        random.setstate(random_state)
    return (sample.input, *sample.args), sample.kwargs


def sample_leaves(operator: int, dtype: torch.dtype, number: int) -> list[Any]:
    """A sample's tensors and numbers in order."""
    return leaves(samples(operator, dtype, number))


class Writer:
    """Writes one program, executing each line as it goes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.made = Inputs(seed)
        self.inputs: list[str] = []
        self.scope: dict[str, Any] = namespace()
        self.sizes = dict(zip("abc", self.rng.sample([1, 2, 3, 4, 5, 7], 3), strict=True))
        if self.rng.random() < 0.06:
            self.sizes["a"] = 0
        self.main = self.rng.choice(FLOATS)
        self.ladder = self.rng.choice([("a", "b"), ("a", "b", "c"), ("b", "c"), ("2", "a", "b", "c"), ("a", "a"), ("c",)])
        self.count = 0

    def program(self) -> Program:
        """A whole program."""
        rng = self.rng
        mode = rng.choice(MODES)
        for number in range(rng.randint(2, 4)):
            self.input(number)
        lines: list[str] = []
        with context(mode), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            while len(lines) < rng.randint(3, 12):
                lines += self.block() if rng.random() < 0.06 else self.line()
            if rng.random() < 0.05:
                lines += [text for text in [self.expression(rng.choice([POINTWISE, FOLDS, VIEWS]))] if text and not self.works(text)]
        options: dict[str, Any] = {"emulate_precision_casts": True} if rng.random() < 0.2 else {}
        if rng.random() < 0.15:
            options["dynamic"] = True
        tensors = self.tensors("xv")
        text = "\n".join(lines)
        unread = [name for name in tensors if name[0] == "v" and len(re.findall(rf"\b{name}\b", text)) == 1]
        returned = rng.sample(unread, min(len(unread), rng.randint(1, 4))) + ([rng.choice(tensors)] if rng.random() < 0.4 or not unread else [])
        return Program(self.seed, self.inputs, lines, returned, mode, rng.choice(WAYS), options, rng.random() < 0.25)

    def input(self, number: int) -> None:
        """One more input: fresh, or sharing memory with an earlier one."""
        rng, name = self.rng, f"x{number}"
        shape = self.ladder if rng.random() < 0.6 else rng.choice([self.ladder[1:], self.ladder[-1:], (), ("1", *self.ladder[1:]), (*self.ladder, "b"), self.ladder[::-1]])
        dtype = self.main if rng.random() < 0.7 else rng.choice(FLOATS + OTHERS)
        grad = dtype in FLOATS and rng.random() < 0.5
        text = f"fresh(({''.join(f'{size}, ' for size in shape)}), torch.{dtype}, {rng.choice(LAYOUTS)!r}{', grad=True' if grad else ''})"
        kind = rng.random()
        if number and kind < 0.12:
            text = f"{rng.choice([line.split(' ')[0] for line in self.inputs])}{rng.choice(['.detach()', '.detach()[1:]', '.detach().t()', '', '.detach().view(-1)', '.detach()[..., :1]', ''])}"
        elif kind > 0.92 and grad:
            text += rng.choice([".clone()", ".mul(1)", ".view(-1)", "[..., :1]", ".exp().sum(-1)"])
        if not self.works(f"{name} = {text}", fresh=self.made.fresh, sample=self.made.sample, **self.sizes):
            return self.input(number)
        self.inputs.append(f"{name} = {text}")

    def works(self, text: str, **more: Any) -> bool:
        """Execute a line."""
        self.scope.update(more)
        try:
            exec(text, self.scope)
        except Exception:
            return False
        return not any(isinstance(value, torch.Tensor) and value.numel() > 4000 for value in self.scope.values())

    def line(self) -> list[str]:
        """One line that works, or none."""
        kind = self.rng.random()
        if kind < 0.10:
            text = self.from_database()
        elif kind < 0.26:
            text = self.fill(self.rng.choice(WRITES))
            if text and self.rng.random() < 0.15 and re.search(r"_\([^()]*\)$", text):
                text = f"{self.name()} = {text}"
        else:
            text = self.expression(POINTWISE if kind < 0.54 else FOLDS if kind < 0.74 else VIEWS)
        return [text] if text and self.works(text) else []

    def expression(self, templates: list[str]) -> str | None:
        """An assignment of a filled template."""
        text = self.fill(self.rng.choice(templates))
        return text and f"{self.name()} = {text}"

    def block(self) -> list[str]:
        """A few lines under another grad or autocast mode."""
        head = self.rng.choice(HEADS)
        manager = eval(head[5:-1], self.scope)
        with manager:
            body = [line for _ in range(4) for line in self.line()]
        return [head, *("    " + line for line in body)] if body else []

    def name(self) -> str:
        """A new variable, rarely an old one."""
        self.count += 1
        return f"v{self.count}"

    def tensors(self, prefixes: str, wanted: Callable[[torch.Tensor], bool] = lambda value: True) -> list[str]:
        """Variables that hold tensors."""
        return [name for name, value in self.scope.items()
                if name[0] in prefixes and name[1:].isdigit() and isinstance(value, torch.Tensor) and wanted(value)]  # fmt: skip

    def fill(self, template: str) -> str | None:
        """A template with its holes filled; `None` where nothing fits."""
        last = "x0"

        def hole(match: re.Match[str]) -> str:
            nonlocal last
            kind = match[1]
            if kind in ("t", "f", "b"):
                wanted = {"f": lambda v: v.is_floating_point(), "b": lambda v: not v.is_floating_point(), "t": lambda v: True}[kind]
                names = self.tensors("xv", wanted)
                last = self.rng.choice(names[-4:] if self.rng.random() < 0.6 else names) if names else "missing"
                return last
            if kind in ("t0", "f0"):
                return last
            if kind == "d":
                dims = self.scope[last].dim() if last in self.scope else 0
                return str(self.rng.randint(-dims, dims - 1)) if dims else "0"
            dtype = f"torch.{self.rng.choice(FLOATS + OTHERS)}"
            return {"i": str(self.rng.randint(-2, 3)), "n": str(self.rng.randint(1, 3)), "x": self.rng.choice(["0.5", "1.5", "2.0", "0.1", "-0.5"]), "k": dtype}[kind]

        text = re.sub(r"\{(\w+)\}", hole, template)
        return None if "missing" in text else text

    def from_database(self) -> str | None:
        """A call of an operator of the database: a sample, one of its tensors replaced by one of the program's."""
        rng = self.rng
        operator = rng.randrange(len(op_db))
        info = op_db[operator]
        dtype = getattr(torch, self.main if rng.random() < 0.8 else rng.choice(FLOATS + OTHERS))
        if info.name in RANDOM_OPERATORS or dtype not in info.supported_dtypes("cpu"):
            return None
        number = rng.randrange(6)
        try:
            args, kwargs = samples(operator, dtype, number)
        except Exception:
            return None
        values = leaves((args, kwargs))
        kept: list[str] = []
        texts = []
        for position, value in enumerate(values):
            if not isinstance(value, torch.Tensor):
                texts.append(repr(value))
                continue
            text = self.adapted(value)
            if text is None or rng.random() < 0.4:
                text = f"x{len(self.inputs) + len(kept)}"
                grad = value.is_floating_point() and info.supports_autograd and rng.random() < 0.5
                kept.append(f"{text} = sample({operator}, {dtype}, {number}, {position}{', grad=True' if grad else ''})")
            texts.append(text)
        remaining = iter(texts)
        given = [shown(value, remaining) for value in args] + [f"{key}={shown(value, remaining)}" for key, value in kwargs.items()]
        if any("<" in text for text in given):
            return None
        for line in kept:
            if not self.works(line):
                return None
        text = f"{self.name()} = OPS[{operator}]({', '.join(given)})"
        if not self.works(text):
            return None
        self.inputs += kept
        result = self.scope[f"v{self.count}"]
        if isinstance(result, (tuple, list)) and result and isinstance(result[0], torch.Tensor):
            text += f"[{rng.randrange(len(result))}]"
        return text + f"  # {info.name}"

    def adapted(self, like: torch.Tensor) -> str | None:
        """One of the program's tensors, cut and repeated to a shape."""
        names = self.tensors("xv", lambda value: value.dtype == like.dtype and value.numel() > 0)
        if not names or like.numel() == 0 or like.is_sparse:
            return None
        name = self.rng.choice(names)
        value, shape = self.scope[name], tuple(like.shape)
        if value.shape == like.shape:
            return name
        times = -(-like.numel() // value.numel())
        return f"{name}.reshape(-1){f'.repeat({times})' if times > 1 else ''}[:{like.numel()}].reshape({shape})"


def shown(value: Any, texts: Iterator[str]) -> str:
    """An argument as text; tensors and numbers are taken from `texts` in order."""
    if isinstance(value, (list, tuple)):
        items = ", ".join(shown(item, texts) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items},)"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {shown(item, texts)}" for key, item in value.items()) + "}"
    return next(texts)


def context(mode: str) -> contextlib.AbstractContextManager[Any]:
    """What a program runs in."""
    if mode == "autocast":
        return torch.autocast("cpu", torch.bfloat16)
    return {"none": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}[mode]()


def observe(program: Program, compile: Callable[..., Any], double: bool = False, calls: int = 2) -> list[tuple[str, Any]]:
    """Every fact that the calls of a program show, with its name."""
    make, function = program.functions(double)
    run = compile(function)
    facts: list[tuple[str, Any]] = []
    writer = Writer(program.seed)
    for number in range(calls + program.other_sizes):
        made = Inputs(program.seed + number, double)
        sizes = dict(writer.sizes)
        if number == calls:
            sizes = {key: size + 1 for key, size in sizes.items()}
        try:
            arguments = make(made.fresh, made.sample, *sizes.values())
        except Exception:
            break
        facts += observe_call(f"call {number}", program, run, arguments, made.leaves, double)
    return facts


def observe_call(
    at: str, program: Program, run: Callable[..., Any], arguments: tuple[Any, ...], sources: list[torch.Tensor], double: bool
) -> Iterator[tuple[str, Any]]:
    """The facts of one call and of what is differentiated after it."""
    versions = [0 if value.is_inference() else value._version for value in arguments]
    torch.manual_seed(1)
    try:
        with context("none" if double and program.mode == "autocast" else program.mode):
            outputs = run(*arguments)
    except Exception as error:
        yield f"{at}: exception", error
        return
    everything = [*arguments, *(value for value in leaves(outputs))]
    names = [f"argument {i}" for i in range(len(arguments))] + [f"output {i}" for i in range(len(everything) - len(arguments))]
    for name, value in zip(names, everything, strict=True):
        yield f"{at}: {name}", snapshot(value)
        if not isinstance(value, torch.Tensor):
            continue
        base = value._base
        yield f"{at}: {name} is", {
            "history": history(value),
            "strides": meaningful_stride(value), "inference": value.is_inference(), "type": type(value),
            "view of": [o for o, other in zip(names, everything, strict=True) if other is base],
            "same object": [o for o, other in zip(names, everything, strict=True) if other is value],
            "same memory": [(o, other.storage_offset() - value.storage_offset()) for o, other in zip(names, everything, strict=True)
                            if isinstance(other, torch.Tensor) and other.numel() and other.untyped_storage()._cdata == value.untyped_storage()._cdata],
        }  # fmt: skip
    yield f"{at}: written", [value.is_inference() or value._version > old for value, old in zip(arguments, versions, strict=True)] if program.mode != "inference" else None
    if program.mode == "inference":
        return
    yield from differentiated(at, program.way, [value for value in leaves(outputs) if isinstance(value, torch.Tensor)], sources)


def history(value: torch.Tensor) -> Any:
    """Whether a tensor has a gradient, is a leaf, was computed; the complaint where that may not be asked."""
    try:
        return value.requires_grad, value.is_leaf, value.grad_fn is not None
    except RuntimeError as error:
        return str(error)


def differentiated(at: str, way: str, outputs: list[torch.Tensor], sources: list[torch.Tensor]) -> Iterator[tuple[str, Any]]:
    """Gradients by one of several ways."""
    roots = list({id(value): value for value in outputs if value.requires_grad and (value.is_floating_point() or value.is_complex())}.values())
    if not roots:
        return
    if way == "one output":
        roots = roots[-1:]
    weights = [torch.cos(torch.arange(value.numel()) + 1.0).reshape(value.shape).to(value.dtype) for value in roots]
    seen: list[Any] = []
    if way == "hooks":
        watched = [value for value in {id(v): v for v in (*sources, *roots)}.values() if value.requires_grad]
        for value in watched:
            value.register_hook(lambda grad, into=seen: into.append(grad.clone(memory_format=torch.contiguous_format)) or grad * 2)
    try:
        if way == "subset":
            wanted = sources[::2]
            found = torch.autograd.grad(roots, wanted, weights, allow_unused=True) if wanted else ()
            for number, gradient in enumerate(found):
                # Not the layout, which depends on that of the gradient that comes in.
                yield f"{at}: gradient {number} of a subset", None if gradient is None else gradient.contiguous()
        else:
            torch.autograd.backward(roots, weights, retain_graph=way in ("retain", "accumulate"))
            if way == "retain":
                torch.autograd.backward(roots, weights)
            if way == "accumulate" and len(roots) > 1:
                torch.autograd.backward(roots[:1], weights[:1])
    except Exception as error:
        yield f"{at}: exception in backward", error
    for number, source in enumerate(sources):
        yield from gradient_facts(f"{at}: gradient {number}", source.grad)
    for number, gradient in enumerate(sorted(seen, key=lambda g: (tuple(g.shape), float(g.double().abs().sum())))):
        yield f"{at}: hook {number}", gradient


def gradient_facts(name: str, gradient: Any) -> Iterator[tuple[str, Any]]:
    """A gradient's values and layout."""
    yield name, None if gradient is None else snapshot(gradient)
    if gradient is not None:
        yield f"{name} is", {"strides": meaningful_stride(gradient), "requires_grad": gradient.requires_grad}


def compiler(options: dict[str, Any]) -> Callable[..., Any]:
    """The compiler as programs are run: eager's random numbers, failures not hidden."""
    chosen = {"fallback_random": True, "suppress_errors": False, "cache": False} | options
    dynamic = chosen.pop("dynamic", None)
    return lambda function: minicompile.compile(function, dynamic=dynamic, options=chosen)


def differences(program: Program) -> list[str]:
    """What the compiled program shows that eager does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = observe(program, lambda function: function)
        compiled = observe(program, compiler(program.options))
        refusal = next((fact for name, fact in compiled if isinstance(fact, minicompile.errors.CompileFailed)), None)
        if refusal is not None:
            if not any(name in str(refusal) for name in CLEAN):
                return [f"not compiled: {refusal}"]
            compiled = observe(program, compiler(program.options | {"suppress_errors": True}))
        found = list(compared(eager, compiled, {}, coarsest_of(program)))
        if any("error" in text for text in found):
            with contextlib.suppress(Exception):
                exact = observe(program, lambda function: function, double=True)
                found = list(compared(eager, compiled, dict(exact), coarsest_of(program)))
    return found


def coarsest_of(program: Program) -> float:
    """The unit of the least precise dtype that a program computes in."""
    found = [torch.finfo(getattr(torch, name)).eps for name in set(FLOATS) if name in program.text]
    return max([*found, torch.finfo(torch.bfloat16).eps if "autocast" in program.text + program.mode else 0.0])


def nearly(eager: Any, compiled: Any, unit: float) -> bool:
    """Whether two tensors alike differ by what rounding to a coarser dtype on the way explains."""
    if not (isinstance(eager, torch.Tensor) and isinstance(compiled, torch.Tensor) and eager.is_floating_point()):
        return False
    if eager.dtype != compiled.dtype or eager.shape != compiled.shape or meaningful_stride(eager) != meaningful_stride(compiled):
        return False
    finite = eager[eager.isfinite()].abs()
    bound = 4 * unit * float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(eager.double(), compiled.double(), rtol=0, atol=bound, equal_nan=True)


def compared(
    eager: list[tuple[str, Any]], compiled: list[tuple[str, Any]], exact: dict[str, Any], coarsest: float
) -> Iterator[str]:
    """Differences fact by fact."""
    theirs = dict(compiled)
    for name, fact in eager:
        if name not in theirs:
            yield f"{name}: missing; compiled shows {[(key, short(value)) for key, value in compiled if 'exception' in key][:1]}"
            return
        other = theirs[name]
        if isinstance(fact, BaseException):
            # Errors of a backward name the tensors and versions that autograd has seen.
            if type(fact) is not type(other) or ("backward" not in name and str(fact) != str(other)):
                yield f"{name}: {short(fact)} in eager, {short(other)} compiled"
        elif isinstance(fact, dict):
            for key, value in fact.items():
                if value != other[key]:
                    yield f"{name}: {key} {value} in eager, {other[key]} compiled"
        elif not nearly(fact, other, coarsest):
            reference = exact.get(name)
            yield from (f"{name}: {text}" for text in value_differences(fact, other, reference, [fact], 3.0))
    more = set(theirs) - {name for name, _ in eager}
    if more:
        yield f"compiled shows more: {sorted(more)[:2]} {short(theirs[sorted(more)[0]])}"


def short(value: Any) -> str:
    """The beginning of a value's text."""
    return " ".join(repr(value).split())[:300]


def kind_of(found: list[str]) -> str:
    """What sort of difference it is, for the shrinker."""
    return re.sub(r"[0-9.e+-]+", "#", re.sub(r"^call \d+: ", "", found[0]))[:40] if found else ""


def shrunk(program: Program, found: list[str]) -> tuple[Program, list[str]]:
    """A shorter program that differs in the same way."""
    changed = True
    while changed:
        changed = False
        for smaller in candidates(program):
            try:
                with time_limit(60):
                    smaller.functions()
                    other = differences(smaller)
            except (Exception, TookTooLong):
                continue
            if other and kind_of(other)[:18] == kind_of(found)[:18] and "NameError" not in other[0]:
                program, found, changed = smaller, other, True
                break
    return program, found


def candidates(program: Program) -> Iterator[Program]:
    """Programs with one thing less."""
    for index in reversed(range(len(program.lines))):
        rest = program.lines[:index] + program.lines[index + 1 :]
        yield dataclasses.replace(program, lines=rest or ["pass"])
        if program.lines[index].startswith("with"):
            until = next((i for i, line in enumerate(rest[index:], index) if not line.startswith("    ")), len(rest))
            yield dataclasses.replace(program, lines=program.lines[:index] + [line[4:] for line in rest[index:until]] + rest[until:])
    if len(program.returned) > 1:
        for index in range(len(program.returned)):
            yield dataclasses.replace(program, returned=program.returned[:index] + program.returned[index + 1 :])
    if program.options:
        yield dataclasses.replace(program, options={})
    if program.mode != "none":
        yield dataclasses.replace(program, mode="none")
    if program.way != "backward":
        yield dataclasses.replace(program, way="backward")


def main() -> int:
    """Check the programs of a range of seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", help="one, or first:last")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--whole", action="store_true", help="do not shrink")
    given = parser.parse_args()
    first, _, last = given.seeds.partition(":")
    wrong, start = [], time.time()
    torch.set_num_threads(1)
    for seed in range(int(first), int(last or int(first) + 1)):
        try:
            with time_limit(60):
                program = Writer(seed).program()
                if given.show:
                    print(program.text, program.mode, program.way, program.options, program.other_sizes)
                found = differences(program)
        except Exception as failure:
            found = [f"the test failed: {short(failure)}"]
        except TookTooLong:
            print(f"seed {seed}: too slow", flush=True)
            continue
        if found:
            wrong.append(seed)
            if not given.whole:
                program, found = shrunk(program, found)
            told = "\n  ".join(text[:400] for text in found[:4])
            print(f"--- seed {seed} ({program.mode}, {program.way}, {program.options}, {program.other_sizes})\n{program.text}  {told}", flush=True)
        if seed % 100 == 99:
            print(f"{seed + 1 - int(first)} programs, {len(wrong)} differ, {time.time() - start:.0f} s", flush=True)
    print(f"{len(wrong)} differ: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
