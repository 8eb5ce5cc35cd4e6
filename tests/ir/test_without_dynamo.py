"""What `torch.compile` needs is not imported for us, and is right once it is there."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


@pytest.mark.parametrize("first", ["minicompile", "torch"])
def test_a_first_compilation_needs_no_torch_dynamo(first: str) -> None:
    """Its import takes longer than compiling a small model, and that of distributed tensors as long as capturing one; compiled
    before or after it, results are the same."""
    program = f"""
        import sys, torch, minicompile
        from torch import nn
        from minicompile.runtime.recorded_call import Watch

        with Watch():
            torch.ones(2)
        torch.manual_seed(0)
        convolved = nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 2, 1), nn.Flatten(), nn.RMSNorm(8))
        model = nn.Sequential(nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), convolved, nn.Dropout(0.0), nn.Softmax(-1))
        numbers = torch.arange(6)

        def gradients(call):
            model.zero_grad()
            (call(numbers) ** 2).sum().exp().backward()
            return [parameter.grad.clone() for parameter in model.parameters()]

        expected = gradients(model)
        compilers = [minicompile.compile, lambda model: torch.compile(model, backend="aot_eager")]
        for compile in compilers if {first!r} == "minicompile" else reversed(compilers):
            found = gradients(compile(model))
            if compile is minicompile.compile and {first!r} == "minicompile":
                assert not {{"torch._dynamo", "torch._inductor", "torch.distributed.tensor"}} & sys.modules.keys()
            torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradients(minicompile.compile(model, dynamic=True)), expected)
    """
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
