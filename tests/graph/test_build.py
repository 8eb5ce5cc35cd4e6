"""Programs through the graph stage and its reference executor: the same outputs, gradients and side effects as eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from minicompile.config import Config
from minicompile.errors import CompileFailed
from minicompile.graph.random_numbers import Draws
from minicompile.ir.graph import FreshOutput, InputOutput, RepeatedOutput, ViewOutput
from minicompile.runtime.second_derivatives import DoubleBackward
from tests.differential import leaf
from tests.graph.programs import check, compile_eagerly, operators


class TestModels:
    def test_a_perceptron_trains_as_in_eager(self) -> None:
        check(lambda x, w, b, v: F.gelu(F.linear(x, w, b)) @ v, torch.randn(3, 4), leaf(5, 4), leaf(5), leaf(5, 2))

    def test_without_gradients_there_is_no_backward(self) -> None:
        with torch.no_grad():
            compiled = check(lambda x, w: torch.relu(x @ w), torch.randn(3, 4), leaf(4, 4))
        assert compiled.partitioned.backward is None

    def test_attention_is_one_node_forward_and_one_backward(self) -> None:
        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        compiled = check(attend, leaf(2, 3, 5, 8), leaf(2, 3, 7, 8), leaf(2, 3, 7, 8))
        assert operators(compiled.partitioned.forward) == ["attention"]
        assert operators(compiled.partitioned.backward) == ["attention_backward"]

    @pytest.mark.parametrize("kind", ["bool", "additive", "learned"])
    def test_attention_with_a_mask(self, kind: str) -> None:
        mask = {"bool": torch.rand(2, 1, 5, 7) > 0.4, "additive": torch.randn(5, 7), "learned": leaf(1, 3, 5, 7)}[kind]
        check(
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.3),
            leaf(2, 3, 5, 8), leaf(2, 3, 7, 8), leaf(2, 3, 7, 8), mask,
        )  # fmt: skip

    def test_attention_with_grouped_heads_and_three_dims(self) -> None:
        check(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            leaf(2, 6, 5, 8), leaf(2, 2, 5, 8), leaf(2, 2, 5, 8),
        )  # fmt: skip
        check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), leaf(2, 5, 8), leaf(2, 5, 8), leaf(2, 5, 8))

    @pytest.mark.parametrize("training", [True, False])
    def test_batch_norm_updates_its_statistics(self, training: bool) -> None:
        def run(x, w, b, scale, shift, mean, var):
            y = F.conv2d(x, w, b)
            return F.relu(F.batch_norm(y, mean, var, scale, shift, training, 0.1))

        check(
            run, torch.randn(2, 3, 8, 8), leaf(4, 3, 3, 3), leaf(4), leaf(4), leaf(4), torch.zeros(4), torch.ones(4),
            tolerance=1e-4,
        )  # fmt: skip

    def test_losses_and_norms(self) -> None:
        target = torch.tensor([1, 3, -100, 0])
        check(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), leaf(4, 5), target)
        check(lambda x, w, b: F.group_norm(x, 2, w, b), leaf(2, 4, 3, 3), leaf(4), leaf(4))
        check(lambda x, w: F.rms_norm(x, (8,), w), leaf(2, 8), leaf(8))
        check(lambda i, w: F.embedding(i, w), torch.tensor([[1, 2], [2, 0]]), leaf(5, 3))
        check(lambda x: F.log_softmax(x, 1) + x.cumsum(0), leaf(4, 5))


class TestMutation:
    def test_an_input_written_in_place_is_written_by_the_graph(self) -> None:
        compiled = check(lambda x, y: x.add_(y) * 2, torch.randn(3), torch.randn(3))
        assert compiled.partitioned.binding.mutated_inputs[0].in_graph
        assert operators(compiled.partitioned.forward)[-1] == "copy_"

    def test_a_view_of_an_input_is_written(self) -> None:
        check(lambda x, y: x[1:].mul_(y).sum(), torch.randn(4, 3), torch.randn(3))
        check(lambda x, i: x.index_put_((i,), torch.ones(2)), torch.randn(4), torch.tensor([1, 3]))

    def test_a_non_leaf_input_written_with_gradient(self) -> None:
        def outer(compiled, x, w):
            y = x * 2
            z = compiled(y, w)
            return torch.autograd.grad((z.sum() + (y * y).sum()), (x, w))

        def inner(y, w):
            y.mul_(w)
            return y.sin()

        x, w = leaf(3), leaf(3)
        example = (x * 2).detach().requires_grad_()
        non_leaf = example * 1
        compiled = compile_eagerly(inner, non_leaf, w)
        for a, e in zip(outer(compiled, x, w), outer(inner, x, w), strict=True):
            torch.testing.assert_close(a, e)

    def test_a_parameter_updated_without_gradient(self) -> None:
        p, g = leaf(3), torch.randn(3)
        expected = p.detach().clone() - 0.1 * g
        with torch.no_grad():
            compiled = compile_eagerly(lambda p, g: (p.add_(g, alpha=-0.1), g * 2)[1], p, g)
            before = p._version
            compiled(p, g)
        torch.testing.assert_close(p.detach(), expected)
        assert p._version > before

    def test_the_old_value_of_a_written_buffer_reaches_the_backward(self) -> None:
        def run(x, buffer):
            y = (x * buffer.clone()).sin()
            buffer.add_(1)
            return y

        check(run, leaf(4), torch.randn(4))

    def test_returning_a_copy_of_the_old_value(self) -> None:
        def run(buffer):
            old = buffer.clone()
            buffer.add_(1)
            return old

        check(run, torch.randn(4))

    def test_changes_of_shape_or_storage_are_refused(self) -> None:
        with pytest.raises(CompileFailed, match="shape or strides"):
            compile_eagerly(lambda x: x.t_() * 1, torch.randn(3, 4))
        with pytest.raises(CompileFailed, match="storage"):
            compile_eagerly(lambda x, y: x.set_(y), torch.randn(3), torch.randn(3))


class TestAliases:
    def test_an_input_returned_is_the_input(self) -> None:
        x = torch.randn(3)
        compiled = check(lambda x: (x, x + 1), x)
        assert isinstance(compiled.partitioned.binding.outputs[0], InputOutput)
        assert compiled(x)[0] is x

    def test_a_view_of_an_input_is_a_view_of_it(self) -> None:
        x = torch.randn(3, 4)
        compiled = check(lambda x: (x.t(), x[1], x.unflatten(1, (2, 2)).detach(), x.unbind(0)[2]), x)
        assert all(isinstance(b, ViewOutput) for b in compiled.partitioned.binding.outputs)
        for view in compiled(x):
            assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        check(lambda x: (x.t(), x[1] * 2, x.detach()), leaf(3, 4))

    def test_outputs_that_share_storage_still_do(self) -> None:
        def run(x):
            y = x + 1
            return y, y[0], y.t()

        compiled = check(run, leaf(3, 4))
        y, first, turned = compiled(torch.zeros(3, 4, requires_grad=True))
        with torch.no_grad():
            y.fill_(5)
        assert first[0] == 5 and turned[0, 0] == 5

    def test_views_of_a_tensor_that_is_not_returned(self) -> None:
        def run(x):
            y = x * 2
            return y[0], y[1:]

        compiled = check(run, leaf(3, 4))
        a, b = compiled(leaf(3, 4))
        assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()

    def test_the_same_tensor_twice_is_one_object_and_equal_tensors_are_two(self) -> None:
        def run(x):
            y = x + 1
            return y, y, x + 1, y.clone()

        compiled = check(run, torch.randn(3))
        a, b, c, d = compiled(torch.randn(3))
        assert a is b
        assert len({t.data_ptr() for t in (a, c, d)}) == 3
        kinds = [type(binding) for binding in compiled.partitioned.binding.outputs]
        assert kinds == [FreshOutput, RepeatedOutput, FreshOutput, FreshOutput]

    def test_a_view_of_a_written_input(self) -> None:
        check(lambda x: (x.add_(1)[0], x), torch.randn(3, 4))


class TestAutograd:
    def test_outputs_without_dependence_need_no_gradient(self) -> None:
        check(lambda x, y: (x * 2, y * 2, (x > 0), x.detach() * 3), leaf(3), torch.randn(3))

    def test_an_unused_input_gets_no_gradient(self) -> None:
        check(lambda x, y: x * 2, leaf(3), leaf(3))

    def test_only_one_of_two_outputs_is_differentiated(self) -> None:
        compiled = compile_eagerly(lambda x: (x.sin(), x.cos()), leaf(3))
        x = leaf(3)
        torch.testing.assert_close(torch.autograd.grad(compiled(x)[1].sum(), x)[0], -x.sin())

    def test_a_kept_graph_runs_backward_twice(self) -> None:
        compiled = compile_eagerly(lambda x: x.exp() * x, leaf(3))
        x = leaf(3)
        y = compiled(x).sum()
        y.backward(retain_graph=True)
        first = x.grad.clone()
        y.backward()
        torch.testing.assert_close(x.grad, 2 * first)

    def test_a_saved_input_changed_before_the_backward_is_noticed(self) -> None:
        compiled = compile_eagerly(lambda x, w: x @ w, torch.randn(3, 3), leaf(3, 3))
        x = torch.randn(3, 3)
        y = compiled(x, leaf(3, 3))
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    def test_a_second_derivative_is_refused_clearly_where_the_graph_draws_random_numbers(self) -> None:
        compiled = compile_eagerly(lambda x: F.dropout(x**3, 0.5), leaf(3))
        x = leaf(3)
        with pytest.raises(DoubleBackward, match="differentiated twice, or by batches, where it draws random numbers"):
            torch.autograd.grad(compiled(x).sum(), x, create_graph=True)

    def test_incoming_gradients_of_any_layout(self) -> None:
        compiled = compile_eagerly(lambda x: x * x, leaf(3, 4))
        x = leaf(3, 4)
        compiled(x).backward(torch.ones(4, 3).t())
        torch.testing.assert_close(x.grad, 2 * x.detach())
        x.grad = None
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, 2 * x.detach())

    def test_hooks_and_accumulation(self) -> None:
        compiled = compile_eagerly(lambda x: x * 3, leaf(2))
        x, seen = leaf(2), []
        x.register_hook(lambda g: seen.append(g.clone()))
        compiled(x).sum().backward()
        compiled(x).sum().backward()
        assert len(seen) == 2
        torch.testing.assert_close(x.grad, torch.full((2,), 6.0))

    def test_outputs_can_be_written_in_place(self) -> None:
        compiled = compile_eagerly(lambda x: ((x + 1).t(), x * 2), leaf(3, 4))
        x = leaf(3, 4)
        a, b = compiled(x)
        a.mul_(2)
        (a.sum() + b.sum()).backward()
        torch.testing.assert_close(x.grad, torch.full((3, 4), 4.0))


class TestRandom:
    def test_dropout_gives_the_backward_the_forward_mask(self) -> None:
        compiled = compile_eagerly(lambda x: F.dropout(x, 0.5, True), leaf(1000))
        x = leaf(1000)
        torch.manual_seed(3)
        y = compiled(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad, torch.where(y == 0, 0.0, 2.0))
        assert 400 < int((y == 0).sum()) < 600
        other = compiled(x)
        torch.manual_seed(3)
        assert torch.equal(compiled(x), y) and not torch.equal(other, y)

    def test_statistics(self) -> None:
        def draw(x):
            return (torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 10), torch.bernoulli(x * 0 + 0.25),
                    torch.empty_like(x).exponential_(2.0))  # fmt: skip

        uniform, normal, integers, coins, waits = compile_eagerly(draw, torch.randn(100000))(torch.randn(100000))
        assert abs(uniform.mean() - 0.5) < 0.01 and uniform.min() >= 0 and uniform.max() < 1
        assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
        assert set(integers.unique().tolist()) == set(range(10))
        assert abs(coins.mean() - 0.25) < 0.01 and abs(waits.mean() - 0.5) < 0.01

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    def test_exponential_numbers_are_above_zero(self, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
        def zeros(draws: Draws, size: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        monkeypatch.setattr(Draws, "uniform_numbers", zeros)
        smallest = compile_eagerly(lambda x: torch.empty_like(x).exponential_(), torch.ones(3, dtype=dtype))(torch.ones(3, dtype=dtype))
        assert smallest.log().isfinite().all() and smallest.max() < 1e-7

    def test_fallback_random_gives_the_numbers_of_eager(self) -> None:
        def run(x):
            return F.dropout(x, 0.3, True) + torch.rand_like(x)

        x = leaf(50)
        compiled = compile_eagerly(run, x, config=Config(fallback_random=True, verify=True))
        torch.manual_seed(0)
        expected = run(x)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(x), expected)

    def test_attention_with_dropout(self) -> None:
        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)

        q, k, v = leaf(1, 2, 6, 4), leaf(1, 2, 6, 4), leaf(1, 2, 6, 4)
        compiled = compile_eagerly(attend, q, k, v)
        torch.manual_seed(0)
        y = compiled(q, k, v)
        (gradient,) = torch.autograd.grad(y.sum(), v)
        step = torch.zeros_like(v)
        step[0, 0, 1, 2] = 1e-2
        torch.manual_seed(0)
        moved = compiled(q, k, (v + step).detach().requires_grad_())
        torch.testing.assert_close((moved - y).sum(), gradient[0, 0, 1, 2] * 1e-2, rtol=1e-2, atol=1e-4)


class TestMixedPrecision:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    def test_softmax_and_norms_in_other_dtypes(self, dtype: torch.dtype) -> None:
        tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(dtype, 1e-10)
        check(lambda x: torch.softmax(x, -1) * 3, leaf(4, 8, dtype=dtype), tolerance=tolerance)
        check(lambda x, w: F.layer_norm(x, (8,), w), leaf(4, 8, dtype=dtype), leaf(8, dtype=dtype), tolerance=tolerance)

    def test_ambient_autocast_places_casts_as_eager(self) -> None:
        x, w = leaf(4, 4), leaf(4, 4)
        with torch.autocast("cpu", torch.bfloat16):
            expected = torch.softmax(x @ w, -1)
            compiled = compile_eagerly(lambda x, w: torch.softmax(x @ w, -1), x, w)
        actual = compiled(x, w)
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual, expected)


class TestOperatorsOfTheSweep:
    """What the sweep over PyTorch's operators once found wrong in this stage."""

    def test_instance_norm_updates_its_statistics(self) -> None:
        check(lambda x, m, v: F.instance_norm(x, m, v), torch.randn(2, 3, 4, 4), torch.zeros(3), torch.ones(3))

    def test_batch_norm_is_taken_apart(self) -> None:
        compiled = check(lambda x, m, v: F.batch_norm(x, m, v, training=True), leaf(4, 3, 5), torch.zeros(3), torch.ones(3))
        assert "native_batch_norm" not in operators(compiled.partitioned.forward)

    def test_unsafe_splits_are_views(self) -> None:
        compiled = check(lambda x: torch.unsafe_chunk(x, 2)[1], torch.randn(4, 3))
        assert isinstance(compiled.partitioned.binding.outputs[0], ViewOutput)

    def test_soft_margin_gradients_keep_their_digits(self) -> None:
        value = torch.full((3,), 15.0, requires_grad=True)
        check(lambda x, y: F.soft_margin_loss(x, y), value, torch.ones(3))

    def test_polygamma_in_place(self) -> None:
        check(lambda x: x.clone().polygamma_(1), torch.rand(3) + 1)
