"""Functions as people write them around their networks: embeddings, augmentations, losses, simulations, sampling.

Each takes tensors and gives a tensor or several; `arguments` says at which sizes the section `functions` times it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F

Tensors = tuple[torch.Tensor, ...]


def rotary_complex(q: torch.Tensor, k: torch.Tensor, phases: torch.Tensor) -> Tensors:
    """Rotary embedding of queries and keys by complex numbers, as in Llama's reference code."""

    def rotated(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * phases[None, :, None]).flatten(3).type_as(x)

    return rotated(q), rotated(k)


def image_augmentation(images: torch.Tensor, affine: torch.Tensor, flipped: torch.Tensor) -> torch.Tensor:
    """Pictures of bytes: some flipped, saturation and hue beside the colours, turned and made smaller."""
    mean = torch.tensor([0.485, 0.456, 0.406], device=images.device, dtype=affine.dtype).view(1, 3, 1, 1)
    pixels = images.to(affine.dtype) / 255
    pixels = torch.where(flipped[:, None, None, None], pixels.flip(-1), pixels)
    largest, smallest = pixels.amax(1), pixels.amin(1)
    spread, (r, g, b) = largest - smallest, pixels.unbind(1)
    hue = torch.where(largest == g, (b - r) / (spread + 1e-8) + 2, (r - g) / (spread + 1e-8) + 4)
    hue = torch.where(largest == r, ((g - b) / (spread + 1e-8)) % 6, hue) / 6
    seen = torch.cat([pixels - mean, hue[:, None], (spread / (largest + 1e-8))[:, None]], 1)
    turned = F.grid_sample(seen, F.affine_grid(affine, list(images.shape), align_corners=False), align_corners=False)
    return F.interpolate(turned, scale_factor=0.75, mode="bilinear", align_corners=False)


def heat(u: torch.Tensor) -> torch.Tensor:
    """Twenty explicit steps of the heat equation on a torus."""
    for _ in range(20):
        u = u + 0.1 * (u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1) - 4 * u)
    return u


def black_scholes(price: torch.Tensor, strike: torch.Tensor, time: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    """The value of call options at a volatility of 0.3."""
    spread = 0.3 * time.sqrt()
    first = (torch.log(price / strike) + (rate + 0.3**2 / 2) * time) / spread
    normal, discounted = torch.special.ndtr, strike * torch.exp(-rate * time)
    return price * normal(first) - discounted * normal(first - spread)


def n_body(places: torch.Tensor, speeds: torch.Tensor, masses: torch.Tensor) -> Tensors:
    """Four steps of as many bodies as there are rows, each drawn by all others."""
    for _ in range(4):
        between = places[None] - places[:, None]
        square = between.square().sum(-1) + 0.01
        speeds = speeds + 0.01 * (between * (masses / (square * square.sqrt()))[..., None]).sum(1)
        places = places + 0.01 * speeds
    return places, speeds


def dice_and_focal(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The loss of a segmentation."""
    share = logits.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    right = share * target + (1 - share) * (1 - target)
    overlap, both = (share * target).sum((2, 3)), share.sum((2, 3)) + target.sum((2, 3))
    return (0.25 * (1 - right) ** 2 * entropy).mean() + (1 - (2 * overlap + 1) / (both + 1)).mean()


def policy_loss(logits: torch.Tensor, old: torch.Tensor, actions: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """The clipped loss of a policy over the tokens of a language model, with its entropy."""
    logs = logits.float().log_softmax(-1)
    ratio = torch.exp(logs.gather(-1, actions[..., None])[..., 0] - old)
    gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return -(gain - 0.01 * (logs.exp() * logs).sum(-1)).mean()


def top_p(logits: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """A token for each row, among the 50 likeliest and those that make up 0.9."""
    values, tokens = torch.topk(logits.float() / 0.8, 50)
    share = values.softmax(-1)
    share = share.masked_fill(share.cumsum(-1) - share > 0.9, 0)
    reached = (share / share.sum(-1, keepdim=True)).cumsum(-1) > uniform
    return tokens.gather(-1, reached.int().argmax(-1, keepdim=True))


def int8_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A product with weights of one byte, each row with its scale."""
    return F.linear(x, weight.to(x.dtype)) * scale.to(x.dtype)


FUNCTIONS: dict[str, tuple[Literal["forward", "backward"], Callable[..., Any]]] = {
    "rotary_complex": ("forward", rotary_complex),
    "image_augmentation": ("forward", image_augmentation),
    "heat": ("forward", heat),
    "black_scholes": ("backward", black_scholes),
    "n_body": ("forward", n_body),
    "dice_and_focal": ("backward", dice_and_focal),
    "policy_loss": ("backward", policy_loss),
    "top_p": ("forward", top_p),
    "int8_linear": ("forward", int8_linear),
}


def arguments(name: str, device: str, quick: bool) -> Tensors:
    """The arguments of a function; those of a loss that is timed with its gradient want one first."""
    scale = 64 if quick else 1

    def normal(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*sizes, device=device, dtype=dtype)

    def uniform(*sizes: int) -> torch.Tensor:
        return torch.rand(*sizes, device=device) + 0.1

    if name == "rotary_complex":
        angles = torch.outer(torch.arange(2048 // scale), 10_000.0 ** (-torch.arange(64) / 64)).to(device)
        queries, keys = (normal(4, 2048 // scale, heads, 128, dtype=torch.bfloat16) for heads in (32, 8))
        return queries, keys, torch.polar(torch.ones_like(angles), angles)
    if name == "image_augmentation":
        side, affine = (32 if quick else 224), torch.tensor([[1.0, 0.1, 0.05], [-0.1, 1.0, 0.0]], device=device)
        images = torch.randint(0, 256, (32, 3, side, side), device=device, dtype=torch.uint8)
        return images, affine.expand(32, 2, 3).contiguous(), torch.rand(32, device=device) > 0.5
    if name == "heat":
        return (normal(4096 // scale, 4096 // scale),)
    if name == "black_scholes":
        price, *others = (uniform((1 << 25) // scale**2) for _ in range(4))
        return price.requires_grad_(), *others
    if name == "n_body":
        return normal(4096 // scale, 3), normal(4096 // scale, 3), uniform(4096 // scale)
    if name == "dice_and_focal":
        logits = normal(16, 8, 512 // scale, 512 // scale)
        return logits.requires_grad_(), (torch.rand_like(logits) > 0.7).float()
    if name == "policy_loss":
        tokens = 2048 // scale
        logits = normal(tokens, 50257, dtype=torch.bfloat16).requires_grad_()
        return logits, normal(tokens) - 10, torch.randint(0, 50257, (tokens,), device=device), normal(tokens)
    if name == "top_p":
        return normal(64, 32_000, dtype=torch.bfloat16), torch.rand(64, 1, device=device)
    weight = torch.randint(-128, 127, (11008 // scale, 4096 // scale), device=device, dtype=torch.int8)
    return normal(1, 4096 // scale, dtype=torch.bfloat16), weight, uniform(11008 // scale)
