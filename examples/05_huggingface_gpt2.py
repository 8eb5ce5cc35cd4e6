"""Hugging Face's GPT-2, compiled as it is, with random weights in a small configuration.

pip install 'minicompile[examples]'
python examples/05_huggingface_gpt2.py
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
from comparison import check_inference, check_training
from transformers import GPT2Config, GPT2LMHeadModel


class WithLoss(nn.Module):
    """GPT-2 that returns its loss and its logits on the tokens themselves."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.gpt2 = GPT2LMHeadModel(config)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and logits."""
        output = self.gpt2(input_ids=ids, labels=ids, use_cache=False)
        return output.loss, output.logits


def build(width: int, layers: int, heads: int, vocabulary: int, context: int) -> WithLoss:
    """A model without dropout, so that eager and compiled can be compared."""
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=context,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return WithLoss(config)


def benchmark_workload(device: str, quick: bool) -> tuple[nn.Module, tuple[Any, ...], Any]:
    """Model, inputs and loss for `minicompile bench models`."""
    sizes = (32, 2, 2, 100, 16) if quick else (768, 12, 12, 50257, 512)
    ids = torch.randint(0, sizes[3], (2 if quick else 8, sizes[4]), device=device)
    return build(*sizes).to(device), (ids,), lambda output: output[0]


def main(batch: int = 2, time: int = 16) -> None:
    """Check a training step and inference."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = build(width=32, layers=2, heads=2, vocabulary=100, context=32).to(device)
    inputs = (torch.randint(0, 100, (batch, time), device=device),)
    print("training: ", check_training(model, inputs, lambda output: output[0]))
    print("inference:", check_inference(model.eval(), inputs))


if __name__ == "__main__":
    main()
