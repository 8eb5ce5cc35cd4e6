"""Handwritten digits from scikit-learn: a compiled training loop that ends above 95 % on held-out images.

pip install 'minicompile[examples]'
python examples/06_digits.py
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

import minicompile


def main(epochs: int = 25) -> float:
    """Train a small network; its accuracy on the last 360 images is printed and returned."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32, device=device) / 16
    labels = torch.tensor(digits.target, device=device)
    order = torch.randperm(len(images), device=device)
    train, test = order[:-360], order[-360:]

    model = nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    @minicompile.compile
    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    for epoch in range(epochs):
        shuffled = train[torch.randperm(len(train), device=device)]
        # Whole batches only: a last, shorter one would be another shape to compile for.
        for batch in shuffled[: len(shuffled) // 128 * 128].split(128):
            optimizer.zero_grad()
            loss = loss_of(images[batch], labels[batch])
            loss.backward()
            optimizer.step()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

    compiled = minicompile.compile(model.eval())
    with torch.no_grad():
        accuracy = (compiled(images[test]).argmax(-1) == labels[test]).float().mean().item()
    print(f"accuracy on {len(test)} held-out images: {accuracy:.1%};", loss_of.stats)
    return accuracy


if __name__ == "__main__":
    main()
