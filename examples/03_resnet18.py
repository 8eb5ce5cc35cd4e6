"""ResNet-18, written out, in training mode: convolutions stay the vendor's, BatchNorm, ReLU and the residual adds fuse.

python examples/03_resnet18.py
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from comparison import check_inference, check_training


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a residual."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block on (batch, channels, height, width)."""
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """The network of the paper; `width` scales every layer."""

    def __init__(self, classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.layers = nn.ModuleList(
            nn.Sequential(BasicBlock(a, b, 1 if i == 0 else 2), BasicBlock(b, b, 1))
            for i, (a, b) in enumerate(itertools.pairwise(widths))
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to logits."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for layer in self.layers:
            x = layer(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def benchmark_workload(device: str, quick: bool) -> tuple[nn.Module, tuple[Any, ...], Any]:
    """Model, inputs and loss for `minicompile bench models`."""
    batch, size, width, classes = (2, 32, 8, 10) if quick else (64, 224, 64, 1000)
    model = ResNet18(classes, width).to(device)
    targets = torch.randint(0, classes, (batch,), device=device)
    return model, (torch.randn(batch, 3, size, size, device=device),), lambda out: F.cross_entropy(out, targets)


def main(batch: int = 4, size: int = 64, width: int = 16, seed: int = 0) -> None:
    """Check one training step with running statistics, and inference.

    Smaller images leave the last normalisations so few values that rounding alone decides the comparison.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    model = ResNet18(classes=10, width=width).to(device)
    images, labels = torch.randn(batch, 3, size, size, device=device), torch.randint(0, 10, (batch,), device=device)
    print("training: ", check_training(model, (images,), lambda logits: F.cross_entropy(logits, labels)))
    print("inference:", check_inference(model.eval(), (images,)))


if __name__ == "__main__":
    main()
