"""Gradients of Fourier transforms of real numbers are transforms to real numbers, and right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import minicompile
from minicompile.api import compiled_function
from minicompile.ir.loops import ExternKernel
from tests.differential import check, leaf


def convolved(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """A long convolution, as in Hyena."""
    spectrum = torch.fft.rfft(x, n=14) * torch.fft.rfft(k, n=14)
    return torch.fft.irfft(spectrum, n=14)[..., :7]


def of_modes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A layer of a Fourier neural operator: few modes are multiplied, the rest is zero."""
    spectrum = torch.fft.rfft2(x)
    modes = torch.zeros_like(spectrum)
    modes[:, :, :2, :3] = torch.einsum("bihw,iohw->bohw", spectrum[:, :, :2, :3], torch.view_as_complex(w))
    return torch.fft.irfft2(modes, s=x.shape[-2:])


def loudness(x: torch.Tensor) -> torch.Tensor:
    return torch.stft(x, 8, 3, window=torch.hann_window(8, dtype=x.dtype), return_complex=True).abs().clamp(min=0.3).log()


def turned_back(x: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(8, dtype=x.dtype)
    spectrum = torch.stft(x, 8, 2, window=window, return_complex=True)
    return torch.istft(spectrum * spectrum.abs(), 8, 2, window=window, length=x.shape[-1]).sin()


PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "convolution": (convolved, (leaf(2, 3, 7), leaf(3, 7))),
    "modes": (of_modes, (leaf(2, 3, 6, 5), leaf(3, 3, 2, 3, 2))),
    "spectrogram": (loudness, (leaf(2, 30),)),
    "sound made of a spectrogram": (turned_back, (leaf(2, 30),)),
    **{
        f"{size} numbers, {norm}": (lambda x, norm=norm: torch.view_as_real(torch.fft.rfft(x, norm=norm)), (leaf(3, size),))
        for size in (1, 2, 3, 8, 9)
        for norm in ("backward", "ortho", "forward")
    },
    **{
        f"to {size} numbers": (lambda x, size=size: torch.fft.irfft(torch.complex(x, x.sin()), n=size), (leaf(3, 5),))
        for size in (1, 2, 3, 8, 9, 12)
    },
    "other dimensions": (lambda x: torch.fft.rfftn(x, dim=(0, 2, 1)).abs().contiguous(), (leaf(3, 4, 5),)),
    "two dimensions, ortho": (lambda x: torch.fft.rfft2(x, norm="ortho").abs(), (leaf(2, 3, 4),)),
    "doubles": (lambda x: torch.fft.rfft(x).abs(), (leaf(3, 6, dtype=torch.float64),)),
    "the gradient is returned as it is": (lambda x: torch.fft.rfft(x).real, (leaf(3, 6),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_transforms_are_those_of_eager(name: str) -> None:
    function, inputs = PROGRAMS[name]
    check(function, *inputs)


@pytest.mark.parametrize("name", ["convolution", "modes", "spectrogram"])
def test_a_gradient_is_no_transform_of_zeros(name: str) -> None:
    function, inputs = PROGRAMS[name]
    compiled = minicompile.compile(function, options={"suppress_errors": False, "cache": False})
    compiled(*inputs).sum().backward()
    (graph,) = compiled_function(compiled).compiler.graphs
    steps = [step for part in graph.parts.values() for step in part.schedule.steps if isinstance(step, ExternKernel)]
    calls = [step.target for step in steps]
    assert any("fft_c2r" in call for call in calls)
    assert not any("slice_scatter" in call or "zeros" in call or call.endswith("aten.copy.default") for call in calls)
    assert sum("fft_c2c" in call for call in calls) == (1 if name == "modes" else 0)


def test_infinite_numbers_beside_a_doubled_slice_stay() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x, x)
        z[1:3] *= 2
        return torch.view_as_real(z)

    x = torch.tensor([torch.inf, 1.0, 2.0, 3.0])
    torch.testing.assert_close(minicompile.compile(function)(x), function(x), equal_nan=True)


def test_spectra_of_a_list_that_grows_and_a_scale_that_changes() -> None:
    """Along a dimension that is not the last one, of a transposed input, at several sizes."""
    shown = []
    for wrap in (lambda function: function, minicompile.compile):
        scale, results = 2.0, []

        def filtered(x: torch.Tensor, filters: list[torch.Tensor]) -> torch.Tensor:
            spectrum = torch.fft.rfft(x, dim=-2)
            for taps in filters:
                spectrum = spectrum * torch.fft.rfft(taps, n=x.shape[-2], dim=0)[:, None]
            filters.append(filters[-1] * 1)
            low = torch.zeros_like(spectrum)
            low[..., :2, :] = spectrum[..., :2, :] * scale
            return torch.fft.irfft(low, n=x.shape[-2], dim=-2) + torch.view_as_real(spectrum).sum()

        call = wrap(filtered)
        for size in (5, 8, 5, 7):
            x, taps = torch.linspace(-1, 2, 6 * size, dtype=torch.float64), torch.ones(size - 2, dtype=torch.float64)
            x, taps = x.view(2, 3, size).requires_grad_(), taps.requires_grad_()
            filters = [taps, taps]
            result = call(x.mT, filters)
            results += [result.detach(), *torch.autograd.grad(result.sin().sum(), (x, taps)), torch.tensor(len(filters))]
            scale += 1
        shown.append(results)
    for mine, theirs in zip(*shown, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
