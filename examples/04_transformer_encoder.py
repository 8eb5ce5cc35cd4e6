"""PyTorch's own `nn.TransformerEncoder`, compiled as it is, with a padding mask.

python examples/04_transformer_encoder.py
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
from comparison import check_inference, check_training


class Encoder(nn.Module):
    """A classifier of token sequences."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2, vocabulary: int = 100) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classify = nn.Linear(width, 2)

    def forward(self, ids: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Logits; `padding` is true where `ids` is filler."""
        x = self.encoder(self.embedding(ids), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1)
        return self.classify((x * kept).sum(1) / kept.sum(1))


def benchmark_workload(device: str, quick: bool) -> tuple[nn.Module, tuple[Any, ...], Any]:
    """Model, inputs and loss for `minicompile bench models`."""
    batch, time, width = (2, 16, 32) if quick else (32, 512, 768)
    model = Encoder(width, width // (16 if quick else 64), 2 if quick else 12).to(device)
    ids = torch.randint(0, 100, (batch, time), device=device)
    return model, (ids, padding_mask(batch, time, device)), lambda logits: logits.square().mean()


def padding_mask(batch: int, time: int, device: str) -> torch.Tensor:
    """Each sequence a little shorter than the one before."""
    lengths = time - torch.arange(batch, device=device) % (time // 2)
    return torch.arange(time, device=device) >= lengths[:, None]


def main(batch: int = 3, time: int = 12) -> None:
    """Check a training step and inference."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Encoder().to(device)
    inputs = torch.randint(0, 100, (batch, time), device=device), padding_mask(batch, time, device)
    print("training: ", check_training(model, inputs, lambda logits: logits.square().mean()))
    print("inference:", check_inference(model.eval(), inputs))


if __name__ == "__main__":
    main()
