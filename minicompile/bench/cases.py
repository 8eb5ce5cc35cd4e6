"""The workloads of the benchmark by name (`section/case`), each as plain PyTorch.

A workload says what to call and how many bytes it must move at least. Nothing here measures anything.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn as nn
import torch.nn.functional as F

from minicompile.bench.language_model import SIZES, LanguageModel
from minicompile.bench.networks import NETWORKS, TIMM, hugging_face, timm_network
from minicompile.bench.products import PRODUCTS
from minicompile.bench.training_cases import (
    NORMS,
    OPTIMIZERS,
    SHAPES,
    backward_function,
    optimizer_inputs,
    optimizer_step,
    sizes,
)
from minicompile.bench.written_out import FUNCTIONS, arguments


@dataclasses.dataclass(frozen=True)
class Workload:
    """Something to run.

    Attributes:
        kind: `forward` (one call), `backward` (a call and its gradients, timed apart), `model` (inference and training
            step), `network` (the same in eval and in training mode, under bf16 autocast), `host` (host time of a call),
            `memory` (what a training step needs beyond parameters and gradients), `entry` (what a call costs before its
            graph runs), `products` (matrix products, which are its inputs).
        function: a function or module.
        inputs: its positional arguments.
        num_bytes: the least bytes one forward call must move; 0 where nothing is claimed.
        loss: for `model`: from the model's output to a scalar.
        grad: for `host`: with gradients.
        keywords: keyword arguments of a `network`.
        varying: (input, dimension) pairs; if there are any, the workload compiled for its own sizes is compared with the same
            compiled for any such sizes.
    """

    kind: Literal["forward", "backward", "model", "network", "host", "memory", "entry", "products"]
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    num_bytes: int = 0
    loss: Callable[[Any], torch.Tensor] | None = None
    grad: bool = False
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    varying: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Place:
    """Where and how large: the device, and whether sizes are cut down to almost nothing."""

    device: str
    quick: bool

    def randn(self, *sizes: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
        """Normal values on the device."""
        return torch.randn(*sizes, device=self.device, dtype=dtype, requires_grad=grad)


Build = Callable[[Place], Workload]


def gelu(a: torch.Tensor) -> torch.Tensor:
    """GELU's tanh form, written out."""
    return 0.5 * a * (1 + torch.tanh((2 / math.pi) ** 0.5 * (a + 0.044715 * a**3)))


def softmax_written_out(x: torch.Tensor) -> torch.Tensor:
    """Softmax as in a textbook."""
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual add and RMSNorm with fp32 statistics."""
    h = x + residual
    scale = torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return h, (h.float() * scale).to(h.dtype) * weight.to(h.dtype)


def fusion(name: str) -> Build:
    """A case of the section `fusion`: 16384 x 8192, fp32 unless its name says otherwise."""

    def build(place: Place) -> Workload:
        rows, columns = (64, 128) if place.quick else (16384, 8192)
        x = place.randn(rows, columns)
        weight, bias = place.randn(columns), place.randn(columns)
        size = x.nbytes

        def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(x, (columns,), w, b)

        half = x.bfloat16()
        square = place.randn(columns, columns)
        cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
            "cos_cos": (lambda x: x.cos().cos(), (x,), 2 * size),
            "gelu": (gelu, (x,), 2 * size),
            "mean": (lambda x: x.mean(), (x,), size),
            "softmax": (lambda x: x.softmax(-1), (x,), 2 * size),
            "softmax_written_out": (softmax_written_out, (x,), 2 * size),
            "layer_norm": (layer_norm, (x, weight, bias), 2 * size),
            "add_rms_norm_bf16": (add_rms_norm, (half, torch.randn_like(half), weight), 2 * size),
            "cross_entropy": (F.cross_entropy, (x, targets(place, rows, columns)), size),
            "sum_dim0": (lambda x: x.sum(0), (x,), size),
            "transpose_add": (lambda a, b: a.t() + b, (square, torch.randn_like(square)), 3 * square.nbytes),
            "swiglu_bf16": (lambda a, b: F.silu(a) * b, (half, torch.randn_like(half)), 3 * size // 2),
        }
        return Workload("forward", *cases[name])

    return build


def fusion_bf16(name: str) -> Build:
    """A case of the section `fusion-bf16`: 32768 x 8192 in bf16."""

    def build(place: Place) -> Workload:
        rows, columns = (64, 128) if place.quick else (32768, 8192)
        x = place.randn(rows, columns, dtype=torch.bfloat16)
        weight, bias = (place.randn(columns, dtype=torch.bfloat16) for _ in range(2))
        size = x.nbytes

        def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(x, (columns,), w, b)

        def batch_norm_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return F.relu(F.batch_norm(x, None, None, w, b, training=True))

        channels = 32 if place.quick else 256
        image = x.view(-1, channels, *((4, 4) if place.quick else (32, 32)))
        cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
            "cos_cos": (lambda x: x.cos().cos(), (x,), 2 * size),
            "gelu": (gelu, (x,), 2 * size),
            "layer_norm": (layer_norm, (x, weight, bias), 2 * size),
            "softmax": (lambda x: x.softmax(-1), (x,), 2 * size),
            "log_softmax": (lambda x: x.log_softmax(-1), (x,), 2 * size),
            "var_dim0": (lambda x: x.var(0), (x,), size),
            "cross_entropy": (F.cross_entropy, (x, targets(place, rows, columns)), size),
            "batch_norm_relu": (batch_norm_relu, (image, weight[:channels], bias[:channels]), 2 * size),
        }
        return Workload("forward", *cases[name])

    return build


def backward_case(name: str, rows: int, columns: int) -> Build:
    """A case of the section `backward`: bf16, with gradients of everything."""

    def build(place: Place) -> Workload:
        height, width = (64, 64) if place.quick else (rows, columns)
        function, vectors = backward_function(name, width)
        data = place.randn(height, width, dtype=torch.bfloat16, grad=True)
        weights = tuple(place.randn(width, dtype=torch.bfloat16, grad=True) for _ in range(vectors))
        return Workload("backward", function, (data, *weights), 2 * data.nbytes)

    return build


def optimizer_case(name: str) -> Build:
    """A case of the section `optimizer`: one step over 147 parameters, fp32."""

    def build(place: Place) -> Workload:
        inputs, num_bytes = optimizer_inputs(name, place.quick, place.device)
        return Workload("forward", optimizer_step(name, len(sizes(place.quick))), inputs, num_bytes)

    return build


def targets(place: Place, rows: int, classes: int) -> torch.Tensor:
    """Random class indices."""
    return torch.randint(0, classes, (rows,), device=place.device)


def attention_written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Full attention by einsum and softmax."""
    scores = torch.einsum("bqd,bkd->bqk", q, k) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention by `masked_fill`, heads grouped by `repeat_interleave` where there are fewer keys."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    future = torch.ones(q.shape[-2], k.shape[-2], device=q.device, dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ v


def attention(head: int, length: int) -> Build:
    """Attention written out: batch 8, one head, fp32."""

    def build(place: Place) -> Workload:
        sizes = (2, 32, 16) if place.quick else (8, length, head)
        return Workload("backward", attention_written_out, tuple(place.randn(*sizes, grad=True) for _ in range(3)))

    return build


def attention_bf16(batch: int, heads: int, groups: int, length: int, head: int) -> Build:
    """Causal attention in bf16 with `heads` query heads and `groups` key heads."""

    def build(place: Place) -> Workload:
        b, h, g, t, d = (
            (1, 2, 2 if groups == heads else 1, 32, 16) if place.quick else (batch, heads, groups, length, head)
        )
        q, k, v = (place.randn(b, n, t, d, dtype=torch.bfloat16, grad=True) for n in (h, g, g))
        return Workload("backward", causal_attention, (q, k, v))

    return build


def language_model(size: str, precision: str) -> Build:
    """The language model, batch 4 x 512."""

    def build(place: Place) -> Workload:
        context = 32 if place.quick else 512
        vocabulary = 100 if place.quick else 10000
        model = LanguageModel(*SIZES["tiny" if place.quick else size], vocabulary, context).to(place.device)
        if precision == "bf16":
            model = model.bfloat16()
        elif precision == "tf32":
            torch.set_float32_matmul_precision("high")
        ids = torch.randint(0, vocabulary, (4, context), device=place.device)
        return Workload(
            "model", model, (ids,), loss=lambda out: F.cross_entropy(out.float().view(-1, vocabulary), ids.view(-1))
        )

    return build


class LossOfModel(nn.Module):
    """A language model and its loss, compiled together; under autocast if a dtype for it is given."""

    def __init__(self, model: LanguageModel, autocast: torch.dtype | None) -> None:
        super().__init__()
        self.model, self.autocast = model, autocast

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The loss of predicting every next token."""
        with torch.autocast(ids.device.type, self.autocast, enabled=self.autocast is not None):
            logits = self.model(ids[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def training_memory(size: str, precision: str) -> Build:
    """A training step of the language model, loss included, batch 8 x 512."""

    def build(place: Place) -> Workload:
        context, vocabulary = (33, 100) if place.quick else (513, 10000)
        model = LanguageModel(*SIZES["tiny" if place.quick else size], vocabulary, context).to(place.device)
        if precision == "bf16":
            model = model.bfloat16()
        step = LossOfModel(model, torch.bfloat16 if precision == "autocast" else None)
        return Workload("memory", step, (torch.randint(0, vocabulary, (8, context), device=place.device),))

    return build


def chain(x: torch.Tensor) -> torch.Tensor:
    """Thirty pointwise operations."""
    for _ in range(10):
        x = (x * 2 + 1).sin()
    return x


def host(function: Callable[..., Any] | None, grad: bool) -> Build:
    """Host time of `function` on 8 elements; without one, of 24 Linear layers."""

    def build(place: Place) -> Workload:
        if function is not None:
            x = place.randn(8, grad=grad)
            return Workload("host", function, (x,), grad=grad)
        layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(24)]).to(place.device)
        return Workload("host", layers, (place.randn(4, 64),), grad=grad)

    return build


def entry(function: Callable[..., Any] | None, layers: int = 0) -> Build:
    """The cost of entering the graph of `function`, of so many Linear layers, or of the language model with 12 layers."""

    def build(place: Place) -> Workload:
        if function is not None:
            return Workload("entry", function, (place.randn(8), place.randn(8)))
        if layers:
            stack = nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)]).to(place.device)
            return Workload("entry", stack, (place.randn(4, 8),))
        model = LanguageModel(64, 128, 12, 2, 100, 32).to(place.device)
        return Workload("entry", model, (torch.randint(0, 100, (2, 16), device=place.device),))

    return build


def example_model(file: str) -> Build:
    """A model of the repository's `examples/` folder, by its `benchmark_workload(device, quick)` function."""

    def build(place: Place) -> Workload:
        path = pathlib.Path(__file__).parents[2] / "examples" / file
        if not path.is_file():
            raise FileNotFoundError(f"{path}: this case needs a checkout of the repository")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        sys.path.insert(0, str(path.parent))  # examples import each other
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        model, inputs, loss = module.benchmark_workload(place.device, place.quick)
        return Workload("model", model, inputs, loss=loss)

    return build


def function_case(name: str) -> Build:
    """A case of the section `functions`."""

    def build(place: Place) -> Workload:
        kind, function = FUNCTIONS[name]
        first, *others = arguments(name, place.device, place.quick)
        if kind == "backward":  # by the first argument alone
            return Workload(kind, lambda x: function(x, *others), (first,))
        return Workload(kind, function, (first, *others))

    return build


def with_varying_sizes(build: Build, *varying: tuple[int, int]) -> Build:
    """A case of the section `dynamic`: another case whose (input, dimension) pairs vary."""
    return lambda place: dataclasses.replace(build(place), varying=varying)


def hugging_face_case(name: str) -> Build:
    """A network of Hugging Face."""

    def build(place: Place) -> Workload:
        model, keywords, loss = hugging_face(name, place.device, place.quick)
        return Workload("network", model, (), loss=loss, keywords=keywords)

    return build


def timm_case(name: str) -> Build:
    """A network of timm."""

    def build(place: Place) -> Workload:
        model, inputs, loss = timm_network(name, place.device, place.quick)
        return Workload("network", model, inputs, loss=loss)

    return build


def products_case(name: str) -> Build:
    """Matrix products, each timed alone."""
    return lambda place: Workload("products", torch.matmul, tuple(PRODUCTS[name]))


FUSION = (
    "cos_cos",
    "gelu",
    "mean",
    "softmax",
    "softmax_written_out",
    "layer_norm",
    "add_rms_norm_bf16",
    "cross_entropy",
    "sum_dim0",
    "transpose_add",
    "swiglu_bf16",
)
FUSION_BF16 = (
    "cos_cos",
    "gelu",
    "layer_norm",
    "softmax",
    "log_softmax",
    "var_dim0",
    "cross_entropy",
    "batch_norm_relu",
)
VARYING: dict[str, tuple[tuple[int, int], ...]] = {
    "fusion/cos_cos": ((0, 0), (0, 1)), "fusion/gelu": ((0, 0), (0, 1)), "fusion/mean": ((0, 0), (0, 1)),
    "fusion/softmax": ((0, 0), (0, 1)), "fusion/softmax_written_out": ((0, 0), (0, 1)), "fusion/layer_norm": ((0, 0),),
    "fusion/add_rms_norm_bf16": ((0, 0), (1, 0)), "fusion/cross_entropy": ((0, 0), (1, 0)),
    "fusion/sum_dim0": ((0, 0), (0, 1)), "fusion/transpose_add": ((0, 0), (0, 1), (1, 0), (1, 1)),
    "fusion/swiglu_bf16": ((0, 0), (0, 1), (1, 0), (1, 1)),
    "attention/d64_4096": ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)),
    "attention/causal_bf16": ((0, 0), (0, 2), (1, 0), (1, 2), (2, 0), (2, 2)),
    "lm/small_bf16": ((0, 0), (0, 1)),
}  # fmt: skip
"""What varies in the cases of the section `dynamic`, which are cases of others."""

CASES: dict[str, Build] = {
    **{f"fusion/{name}": fusion(name) for name in FUSION},
    **{f"fusion-bf16/{name}": fusion_bf16(name) for name in FUSION_BF16},
    **{f"backward/{name}_{r}x{c}": backward_case(name, r, c) for name in NORMS for r, c in SHAPES},
    **{f"optimizer/{name}": optimizer_case(name) for name in OPTIMIZERS},
    **{f"functions/{name}": function_case(name) for name in FUNCTIONS},
    **{f"attention/d{d}_{t}": attention(d, t) for d in (64, 128) for t in (1024, 4096, 16384)},
    "attention/causal_bf16": attention_bf16(4, 16, 16, 8192, 64),
    "attention/grouped_bf16": attention_bf16(2, 32, 8, 8192, 128),
    **{f"products/{name}": products_case(name) for name in PRODUCTS},
    "lm/small_bf16": language_model("small", "bf16"),
    "lm/small_tf32": language_model("small", "tf32"),
    **{f"lm/{size}_bf16": language_model(size, "bf16") for size in ("medium", "large", "xl", "2.7b", "deep")},
    **{f"memory/{name}": training_memory(*name.split("_")) for name in
       ("small_fp32", "small_bf16", "small_autocast", "medium_bf16")},
    "overhead/entry_add_relu": entry(lambda x, y: (x + y).relu()),
    "overhead/entry_linear24": entry(None, 24),
    "overhead/entry_lm12": entry(None),
    "overhead/mul_add": host(lambda x: x * 2 + 1, grad=False),
    "overhead/mul_add_grad": host(lambda x: x * 2 + 1, grad=True),
    "overhead/chain30": host(chain, grad=False),
    "overhead/linear24": host(None, grad=False),
    "overhead/linear24_grad": host(None, grad=True),
    "models/resnet18": example_model("03_resnet18.py"),
    "models/transformer_encoder": example_model("04_transformer_encoder.py"),
    "models/gpt2": example_model("05_huggingface_gpt2.py"),
    **{f"hf/{name}": hugging_face_case(name) for name in NETWORKS},
    **{f"timm/{name}": timm_case(name) for name in TIMM},
}
CASES |= {f"dynamic/{name.replace('/', '_')}": with_varying_sizes(CASES[name], *dims) for name, dims in VARYING.items()}

COMPILE_CASES = ("fusion/softmax", "fusion/layer_norm", "lm/small_bf16", "lm/deep_bf16", "models/resnet18")
"""The workloads whose compile time the section `compile` measures, cold and warm."""
