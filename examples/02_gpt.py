"""A small GPT: compiled inference and training, checked against eager and fp64, then a few steps of training.

    python examples/02_gpt.py

The model is `minicompile/demo/model.py`; `python -m minicompile demo` trains it for longer and samples from it.
"""

from __future__ import annotations

import torch
from comparison import check_inference, check_training

import minicompile
from minicompile.demo.model import GPT, GPTConfig
from minicompile.demo.text import batches, encode, standard_library_text


def main(config: GPTConfig | None = None, batch: int = 8, steps: int = 20) -> None:
    """Check the model, then train it."""
    config = config or GPTConfig()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    data, generator = encode(standard_library_text(200_000)), torch.Generator().manual_seed(0)
    model = GPT(config).to(device)
    ids, targets = (t.to(device) for t in batches(data, batch, config.context, generator))
    print("inference:", check_inference(model, (ids,)))
    print("training: ", check_training(model, (ids, targets), lambda loss: loss))

    compiled = minicompile.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    for _ in range(steps):
        ids, targets = (t.to(device) for t in batches(data, batch, config.context, generator))
        optimizer.zero_grad()
        loss = compiled(ids, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss after 1 step {losses[0]:.3f}, after {steps} steps {losses[-1]:.3f}")
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    main()
