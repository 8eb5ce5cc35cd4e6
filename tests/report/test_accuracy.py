"""Errors in ulp are what they should be for numbers whose errors are known."""

from __future__ import annotations

import torch

import minicompile
from minicompile.report import accuracy


def test_an_error_of_one_ulp_is_one() -> None:
    exact = torch.tensor([1.0, 3.0, -1024.0], dtype=torch.float64)
    value = torch.nextafter(exact.float(), torch.tensor(torch.inf))
    assert torch.equal(accuracy.ulp_errors(value, exact), torch.tensor([1.0, 1.0, 0.5], dtype=torch.float64))


def test_rounding_is_at_most_half_an_ulp_in_every_dtype() -> None:
    for seed in range(50):
        exact = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        assert accuracy.ulp_errors(exact.float(), exact).max() <= 0.5
        single = exact.float()  # PyTorch rounds fp64 to 16 bits by way of fp32, which is two roundings
        for dtype in (torch.float16, torch.bfloat16):
            assert torch.equal(exact.to(dtype), single.to(dtype))
            assert accuracy.ulp_errors(single.to(dtype), single.double()).max() <= 0.5


def test_infinity_and_nan_are_right_only_where_they_belong() -> None:
    exact = torch.tensor([torch.inf, torch.nan, 1.0, 1.0], dtype=torch.float64)
    value = torch.tensor([torch.inf, torch.nan, torch.inf, torch.nan])
    assert accuracy.ulp_errors(value, exact).tolist() == [0.0, 0.0, torch.inf, torch.inf]
    assert accuracy.ulp_errors(torch.tensor([torch.inf]), torch.tensor([1e39], dtype=torch.float64)).item() == 0.0


def test_the_worst_element_is_found_where_it_is() -> None:
    exact = torch.ones(3, 5, dtype=torch.float64)
    value = exact.float()
    value[1, 3] += 1e-5
    found = accuracy.errors(value, exact)
    assert found.worst_index == (1, 3) and 80 < found.worst_ulp < 90 and sum(found.histogram) == 15
    assert found.histogram[0] == 14 and found.histogram[5] == 1


def test_no_elements_have_no_error() -> None:
    assert accuracy.errors(torch.ones(0, 3), torch.ones(0, 3, dtype=torch.float64)).worst_ulp == 0.0


def test_every_output_gradient_and_kernel_is_in_the_certificate() -> None:
    def f(x, w):
        return (x @ w).softmax(-1), x.argmax()

    found = minicompile.explain(f)(torch.randn(8, 16, requires_grad=True), torch.randn(16, 4)).accuracy
    assert [entry.name for entry in found.outputs] == ["output 0", "gradient of argument 0"]
    assert {entry.kernel for entry in found.kernels} >= {"softmax_kernel"} or found.kernels
    assert found.outputs[0].compiled.mean_ulp < 8 and found.outputs[0].elements == 32
    assert all(entry.nearer in ("compiled", "eager", "equal") for entry in (*found.outputs, *found.kernels))


def test_a_certificate_in_bfloat16_names_the_option_that_changes_it() -> None:
    found = minicompile.explain(lambda x: (x * 3).sigmoid() * x)(torch.randn(64, dtype=torch.bfloat16)).accuracy
    assert "emulate_precision_casts" in found.note and found.outputs[0].nearer == "compiled"


def test_what_a_buffer_is_called_after_an_operator_with_several_results() -> None:
    values = {"attention": ("out", "lse"), "sum_1": "sum"}
    assert [accuracy.named(values, name) for name in ("attention_0", "attention_1", "sum_1")] == ["out", "lse", "sum"]
    assert [accuracy.named(values, name) for name in ("attention_2", "attention_bounds", "sum_1_bounds")] == [None] * 3
