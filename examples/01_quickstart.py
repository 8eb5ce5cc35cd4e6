"""Compile a function, use the decorator, look at the generated code.

python examples/01_quickstart.py
"""

from __future__ import annotations

import torch

import minicompile


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU's tanh form, as a paper writes it: eight operations, eight kernels in eager."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


@minicompile.compile(fullgraph=True)
def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A reduction and the pointwise work around it: one kernel."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def main() -> None:
    """Run both and print what was compiled."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, weight = torch.randn(64, 256, device=device), torch.randn(256, device=device)

    compiled_gelu = minicompile.compile(gelu)
    torch.testing.assert_close(compiled_gelu(x), gelu(x))
    print("gelu:", compiled_gelu.stats)

    torch.testing.assert_close(rms_norm(x, weight), rms_norm.__wrapped__(x, weight))
    print("rms_norm:", rms_norm.stats)

    # Gradients work as always.
    leaf = x.clone().requires_grad_()
    compiled_gelu(leaf).sum().backward()
    expected = torch.autograd.grad(gelu(leaf).sum(), leaf)[0]
    torch.testing.assert_close(leaf.grad, expected)

    # A call that the first variant does not cover compiles another one, and says why.
    torch.testing.assert_close(compiled_gelu(x.double()), gelu(x.double()))
    for record in compiled_gelu.recompiles:
        print("recompiled:", record)

    print("\nThe generated code of rms_norm:\n")
    print(minicompile.sources(rms_norm))


if __name__ == "__main__":
    main()
