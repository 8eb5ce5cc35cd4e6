"""Tests of tensors on which only a `raise` depends cost no graph break, and the error is raised where eager raises it."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import distributions, nn

from minicompile import compile as minicompile_compile
from tests.capture.support import capture, same_as_eager


def checked(x: torch.Tensor) -> torch.Tensor:
    assert torch.isfinite(x).all(), f"{x.isnan().sum()} are not finite"
    if (x < 0).any():
        raise ValueError(f"negative: {x.min()}")
    return x.sqrt()


def test_one_graph_with_its_tests() -> None:
    compiled = capture(checked)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3))
    assert len(compiled.records.graphs) == 1
    assert not compiled.records.graph_breaks


def test_what_fails_is_raised_at_its_line_and_costs_nothing_later() -> None:
    compiled = capture(checked)
    compiled(torch.ones(3))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"negative: -2") as caught:
            compiled(torch.tensor([1.0, -2.0]))
        assert caught.traceback[-1].name == "checked"
        with pytest.raises(AssertionError, match="1 are not finite"):
            compiled(torch.tensor([float("nan"), 2.0, 1.0]))
    assert len(compiled.records.graphs) <= 2, "one a size"
    assert not compiled.records.graph_breaks


def test_an_error_that_is_caught_inside_ends_the_graph_next_time() -> None:
    def careful(x: torch.Tensor) -> torch.Tensor:
        try:
            if (x < 0).any():
                raise ValueError("negative")
            return x.sqrt()
        except ValueError:
            return -x

    compiled = capture(careful)
    for _ in range(3):
        for x in (torch.ones(2), -torch.ones(2)):
            assert torch.equal(compiled(x), careful(x))
    assert {stop.kind for stop in compiled.records.graph_breaks} == {"branch on a tensor"}


def test_checks_of_torch_stay_in_the_graph() -> None:
    def outer(x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all(x > 0, lambda: "not positive")
        return x.sqrt()

    compiled = capture(outer)
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3))
    with pytest.raises(RuntimeError, match="not positive"):
        compiled(-torch.ones(3))
    assert len(compiled.records.graphs) == 1
    assert not compiled.records.graph_breaks


@pytest.mark.filterwarnings("ignore:_check_is_size:FutureWarning")
def test_checks_of_sizes_stay_in_the_graph() -> None:
    def first(x: torch.Tensor, count: int) -> torch.Tensor:
        torch._check_is_size(count, max=8)
        return x[:count] * 2

    compiled = capture(first)
    for count in (2, 3, 4):
        assert torch.equal(compiled(torch.ones(5), count), 2 * torch.ones(count))
    with pytest.raises(RuntimeError):
        compiled(torch.ones(5), -1)
    assert not compiled.records.graph_breaks


def test_random_numbers_are_drawn_once() -> None:
    def drawn(x: torch.Tensor) -> torch.Tensor:
        x = x + torch.rand(3)
        if x.max() > 5:
            raise ValueError("large")
        return x

    compiled, after = capture(drawn), []
    for function in (drawn, compiled):
        torch.manual_seed(0)
        with pytest.raises(ValueError, match="large"):
            function(torch.full((3,), 9.0))
        after.append(torch.rand(1).item())
    assert after[0] == after[1]


@pytest.mark.parametrize("make", [
    lambda x: distributions.Normal(x, x.exp(), validate_args=True),
    lambda x: distributions.Categorical(logits=x, validate_args=True),
    lambda x: distributions.Categorical(probs=x.softmax(-1), validate_args=True),
    lambda x: distributions.Independent(distributions.Bernoulli(logits=x, validate_args=True), 1),
    lambda x: distributions.TransformedDistribution(distributions.Normal(x, x.exp()), [distributions.TanhTransform()],
                                                    validate_args=True),
    lambda x: distributions.Beta(x.exp(), x.exp(), validate_args=True),
    lambda x: distributions.Gumbel(x, x.exp(), validate_args=False),
    lambda x: distributions.TransformedDistribution(
        distributions.Uniform(torch.zeros_like(x), torch.ones_like(x)),
        [distributions.SigmoidTransform().inv, distributions.AffineTransform(x, x.exp())], validate_args=False),
])
def test_distributions_are_one_graph(make) -> None:
    def outer(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = make(x)
        sample = chosen.sample()
        return sample, chosen.log_prob(sample)

    compiled = capture(outer)
    results = []
    for function in (outer, compiled):
        torch.manual_seed(0)
        results.append(function(torch.ones(2, 3) / 2))
    assert all(map(torch.equal, *results))
    assert len(compiled.records.graphs) == 1
    assert not compiled.records.graph_breaks


def log_prob_by(name):
    def log_prob(matrix: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        normal = distributions.MultivariateNormal(mean, validate_args=True, **{name: matrix})
        return normal.log_prob(mean.flip(-1) + 1) + normal.entropy() + distributions.kl_divergence(
            normal, distributions.MultivariateNormal(mean + 1, scale_tril=torch.eye(3, dtype=mean.dtype)))

    return log_prob


@pytest.mark.parametrize("name", ["covariance_matrix", "precision_matrix", "scale_tril"])
def test_normals_of_matrices_are_one_graph(name: str) -> None:
    function = log_prob_by(name)
    compiled = minicompile_compile(function, fullgraph=True)
    torch.manual_seed(0)
    for batch in ((), (2,), (4,)):
        factor, mean = torch.randn(*batch, 3, 3, dtype=torch.float64).tril() / 4, torch.randn(*batch, 3, dtype=torch.float64)
        factor.diagonal(dim1=-2, dim2=-1).abs_().add_(0.5)
        matrix = factor if name == "scale_tril" else factor @ factor.mT
        mine, reference = ([x.clone().requires_grad_() for x in (matrix, mean)] for _ in range(2))
        result, expected = compiled(*mine), function(*reference)
        torch.testing.assert_close(result, expected)
        for found in (result, expected):
            found.sum().backward()
        for left, right in zip(mine, reference, strict=True):
            torch.testing.assert_close(left.grad, right.grad)


@pytest.mark.parametrize("change", [
    lambda matrix: matrix[..., 0, 1].add_(1), lambda matrix: matrix.neg_(), lambda matrix: matrix.fill_(torch.nan),
    lambda matrix: matrix[0].neg_(), lambda matrix: matrix.squeeze_(0).unsqueeze_(-1)])  # fmt: skip
def test_matrices_that_a_normal_refuses(change) -> None:
    function = log_prob_by("covariance_matrix")
    compiled = minicompile_compile(function)
    matrix = torch.eye(3).repeat(2, 1, 1)
    compiled(matrix, torch.zeros(3))
    change(matrix)
    with pytest.raises((ValueError, RuntimeError)) as expected:
        function(matrix, torch.zeros(3))
    with pytest.raises(type(expected.value)) as found:
        compiled(matrix, torch.zeros(3))
    assert str(found.value) == str(expected.value)


def test_a_lazy_module_is_captured_from_its_second_call_on() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    compiled = capture(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message="Lazy modules are a new feature")
        for _ in range(3):
            compiled(torch.ones(2, 3))
    assert len(compiled.records.graphs) == 1
    assert not compiled.records.graph_breaks
    assert not compiled.records.fallbacks


def test_a_momentum_that_varies_is_an_input() -> None:
    compiled = capture(nn.BatchNorm1d(4, momentum=None))
    for _ in range(12):
        compiled(torch.randn(5, 4))
    assert not compiled.records.fallbacks
    assert len(compiled.records.graphs) <= 6


def test_an_average_over_all_batches_is_part_of_the_graph() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None))
    eager = copy.deepcopy(model)
    compiled = capture(model)
    for rows in (5, 5, 6, 7, 8):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(model.state_dict(), eager.state_dict())
    assert not compiled.records.fallbacks
    assert not compiled.records.graph_breaks


def test_averages_of_models_and_sizes_of_transposed_convolutions_are_captured() -> None:
    averaged = torch.optim.swa_utils.AveragedModel(nn.Linear(3, 2))
    transposed = nn.ConvTranspose2d(2, 2, 3, 2)
    compiled = capture(lambda x, y: (averaged(x), transposed(y, output_size=(6, 6))))
    compiled(torch.ones(2, 3), torch.ones(1, 2, 2, 2))
    assert len(compiled.records.graphs) == 1
    assert not compiled.records.graph_breaks


def test_layers_skipped_with_a_chance_of_zero_are_one_graph() -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))

    def forward(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            if torch.rand([]) < 0.0:
                continue
            x = layer(x)
        return x

    assert not same_as_eager(forward, torch.randn(3, 2)).records.graph_breaks


def test_a_chance_that_was_changed_decides_at_run_time() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        chance = torch.rand([])
        chance -= 2
        return x if chance < 0.0 else -x

    compiled = same_as_eager(forward, torch.randn(3))
    assert {stop.kind for stop in compiled.records.graph_breaks} == {"branch on a tensor"}
