"""Programs with a `torch.autograd.Function` of their own: everything that its context offers, in every style."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from tests.conformance.catalogue import call, leaf, normal, positive, program, under


class Exp(Function):
    """Saves its result."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y * 2


class StraightThrough(Function):
    """Rounds forward, the identity backward."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class LinearByHand(Function):
    """The example of PyTorch's documentation."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        output = x.mm(weight.t())
        if bias is not None:
            output += bias.unsqueeze(0).expand_as(output)
        return output

    @staticmethod
    def backward(ctx, gradient):
        x, weight, bias = ctx.saved_tensors
        for_x = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_x = gradient.mm(weight)
        if ctx.needs_input_grad[1]:
            for_weight = gradient.t().mm(x)
        if bias is not None and ctx.needs_input_grad[2]:
            for_bias = gradient.sum(0)
        return for_x, for_weight, for_bias


class ReverseGradient(Function):
    """Domain-adversarial training's layer."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.neg() * ctx.strength, None


class ClampBothWays(Function):
    """A context in the new style, with numbers."""

    @staticmethod
    def forward(x, low, high):
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, low, high = inputs
        ctx.save_for_backward(x)
        ctx.limits = (low, high)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        low, high = ctx.limits
        return gradient * ((x >= low) & (x <= high)), None, None


class SortWithIndex(Function):
    """A result that has no gradient."""

    @staticmethod
    def forward(ctx, x):
        values, index = x.sort(-1)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.set_materialize_grads(True)
        return values, index

    @staticmethod
    def backward(ctx, gradient, for_index):
        (index,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter(-1, index, gradient) + for_index.sum()


class ScaleInPlace(Function):
    """Changes its input."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        x.mul_(factor)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Swish(Function):
    """Memory-efficient, for autocast too."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0]
        gate = x.sigmoid()
        return gradient * gate * (1 + x * (1 - gate))


class ManyResults(Function):
    """Tensors, a number and nothing."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, 3, None, x + y

    @staticmethod
    def backward(ctx, first, number, nothing, second):
        x, y = ctx.saved_tensors
        assert number is None and nothing is None
        return first * y + second, first * x + second


class MissingGradients(Function):
    """Looks at which gradients there are."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return (0 if first is None else first * 2) + (0 if second is None else second * 3)


class KeepsIntermediate(Function):
    """Keeps what is neither input nor result."""

    @staticmethod
    def forward(ctx, x):
        middle = x.sin()
        ctx.middle = middle
        ctx.shape = x.shape
        return (middle * middle).sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.expand(ctx.shape) * ctx.middle


@program(core=True)
def custom_function_that_saves_its_result():
    def outer(x):
        return Exp.apply(x * 2).sum() + Exp.apply(x).mean()

    return outer, [call(leaf(3)), call(leaf(2, 2)), call(normal(2)), under(torch.no_grad, leaf(2))]


@program
def custom_straight_through_in_a_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(3, 4), nn.Linear(4, 3)

        def forward(self, x):
            return functional.mse_loss(self.decode(StraightThrough.apply(self.encode(x))), x)

    model = Model()
    return model, [call(normal(2, 3)), call(leaf(4, 3))], model


@program
def custom_linear_of_the_documentation():
    class Layer(nn.Module):
        def __init__(self, bias):
            super().__init__()
            self.weight = nn.Parameter(normal(2, 3))
            self.bias = nn.Parameter(normal(2)) if bias else None

        def forward(self, x):
            return LinearByHand.apply(x, self.weight, self.bias)

    model = nn.Sequential(Layer(True), nn.ReLU(), nn.Linear(2, 3), Layer(False))
    return model, [call(normal(4, 3)), call(leaf(2, 3))], model


@program
def gradient_reversal_layer():
    features, domain = nn.Linear(3, 4), nn.Linear(4, 2)

    def outer(x, strength):
        hidden = features(x).relu()
        return domain(ReverseGradient.apply(hidden, strength)), hidden.sum()

    return outer, [call(normal(2, 3), 0.5), call(normal(2, 3), 0.5), call(leaf(2, 3), 0.1)], nn.ModuleList([features, domain])


@program
def custom_function_with_setup_context():
    def outer(x):
        return ClampBothWays.apply(x, -0.5, 0.5) * 2

    return outer, [call(leaf(5)), call(normal(5)), call(leaf(2, 2))]


@program
def custom_function_with_an_index_result():
    def outer(x):
        values, index = SortWithIndex.apply(x)
        return values * torch.arange(float(x.shape[-1])), index, index.requires_grad, values.requires_grad

    return outer, [call(leaf(2, 4)), call(normal(3))]


@program
def custom_function_in_place():
    def outer(x):
        y = x + 1
        z = ScaleInPlace.apply(y, 3.0)
        return z, z is y, y * 2

    return outer, [call(leaf(3)), call(normal(3))]


@program(raises=RuntimeError)
def custom_function_in_place_on_a_leaf():
    def outer(x):
        return ScaleInPlace.apply(x, 3.0)

    return outer, [call(normal(3)), call(leaf(3))]


@program
def custom_function_under_autocast():
    layer = nn.Linear(3, 3)

    def outer(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return Swish.apply(layer(x))

    return outer, [call(leaf(2, 3)), call(normal(2, 3))], layer


@program
def custom_function_with_results_of_all_sorts():
    def outer(x, y):
        product, number, nothing, total = ManyResults.apply(x, y)
        return product * number, nothing, total

    return outer, [call(leaf(3), leaf(3)), call(leaf(3), normal(3)), call(normal(2), normal(2))]


@program
def custom_function_without_materialised_gradients():
    def outer(x, both):
        first, second = MissingGradients.apply(x)
        return first.sum() + (second.sum() if both else 0)

    return outer, [call(leaf(3), True), call(leaf(3), False)]


@program
def custom_function_that_keeps_an_intermediate():
    def outer(x):
        return KeepsIntermediate.apply(x * 1) * 2

    return outer, [call(leaf(3)), call(leaf(2, 2)), call(leaf(3))]


@program
def custom_function_that_returns_its_input():
    class Same(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 5

    def outer(x):
        y = Same.apply(x)
        return y, y is x

    return outer, [call(leaf(2)), call(normal(2)), under(torch.no_grad, leaf(2))]


@program
def custom_function_that_returns_a_view():
    class Flat(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.shape = x.shape
            return x.view(-1)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.view(ctx.shape) * 2

    def outer(x):
        return Flat.apply(x * 3) + 1

    return outer, [call(leaf(2, 3)), call(normal(2, 2))]


@program
def custom_function_whose_gradient_is_a_sum():
    class Times(Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x, scale)
            return x * scale

        @staticmethod
        def backward(ctx, gradient):
            x, scale = ctx.saved_tensors
            return gradient * scale, (gradient * x).sum(0)

    def outer(x, scale):
        return Times.apply(x, scale).relu()

    return outer, [call(leaf(4, 3), leaf(3)), call(normal(4, 3), leaf(3)), call(leaf(4, 3), normal(3))]


@program
def custom_function_that_reads_a_parameter_of_the_closure():
    weight = nn.Parameter(normal(3))

    class Weighted(Function):
        @staticmethod
        def forward(ctx, x):
            return x * weight

        @staticmethod
        def backward(ctx, gradient):
            return gradient * weight

    def outer(x):
        return Weighted.apply(x) + weight

    return outer, [call(leaf(2, 3)), call(normal(3))], weight


@program
def custom_function_with_a_break_in_its_forward():
    class Loud(Function):
        @staticmethod
        def forward(ctx, x):
            print("forward")
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3

    def outer(x):
        y = x.exp()
        return Loud.apply(y).sin() + y

    return outer, [call(leaf(2)), call(normal(2))]


@program
def custom_function_with_side_effects_in_its_backward():
    seen = []

    class Watch(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(gradient.shape)
            return gradient

    def outer(x):
        return Watch.apply(x * 2).sin()

    return outer, [call(leaf(2)), call(leaf(3)), call(normal(2))], seen


@program
def custom_function_with_a_value_in_its_backward():
    class Clip(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if gradient.norm() > 1:
                return gradient / gradient.norm()
            return gradient

    def outer(x):
        return (Clip.apply(x * 2) * 3).sum()

    return outer, [call(leaf(2)), call(normal(2))]


@program
def custom_function_nested_in_another():
    class Outer(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return Exp.apply(x) + 1

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return Exp.apply(gradient) * x

    def outer(x):
        return Outer.apply(x.sin())

    return outer, [call(leaf(3)), call(normal(2))]


@program
def custom_function_twice_differentiated():
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * 2 * x

    def outer(x):
        y = Square.apply(x).sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return (slope**2).sum()

    return outer, [call(leaf(3)), call(leaf(2))]


@program(raises=ValueError)
def custom_function_that_raises():
    class Fussy(Function):
        @staticmethod
        def forward(ctx, x):
            if x.shape[0] == 3:
                raise ValueError("three")
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    def outer(x):
        return Fussy.apply(x) + 1

    return outer, [call(leaf(2)), call(leaf(3))]


@program
def custom_function_saved_tensor_is_changed_later():
    def outer(x):
        y = x * 2
        z = KeepsIntermediate.apply(y)
        y.add_(1)
        return z + y.sum()

    return outer, [call(leaf(3))]


@program
def custom_function_in_half_precision_and_strides():
    def outer(x):
        return Exp.apply(x.t()).contiguous() + Exp.apply(x.t()[1:])[0]

    return outer, [call(leaf(2, 3)), call(leaf(3, 3)), call(positive(2, 3).double().requires_grad_())]


@program
def custom_function_inside_a_checkpoint():
    from torch.utils.checkpoint import checkpoint

    layer = nn.Linear(3, 3)

    def outer(x):
        return checkpoint(lambda y: Exp.apply(layer(y)), x, use_reentrant=False) * 2

    return outer, [call(leaf(2, 3)), call(normal(2, 3))], layer


@program
def custom_function_for_several_sizes():
    def outer(x):
        y = ClampBothWays.apply(x * 2, -1, 1)
        return KeepsIntermediate.apply(y) + SortWithIndex.apply(y)[0].sum() * x.shape[0]

    return outer, [call(leaf(size)) for size in (2, 3, 5, 7, 11)]


@program
def custom_function_whose_forward_has_defaults():
    class Scaled(Function):
        @staticmethod
        def forward(x, factor=3.0, *more):
            return x * factor + len(more)

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, ctx.factor, *ctx.more = inputs
            ctx.save_for_backward(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0] * ctx.factor, None, *(None for _ in ctx.more)

    def outer(x):
        return Scaled.apply(x).sin() + Scaled.apply(x, 2.0) + Scaled.apply(x, 2.0, 5, 7)

    return outer, [call(leaf(3)), call(leaf(4))]


@program
def custom_function_that_takes_its_gradients_in_a_list():
    class Boxed(Function):
        boxed_grads_call = True  # not before torch 2.13

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradients):
            return (gradients.pop() if isinstance(gradients, list) else gradients) * 7

    def outer(x):
        return Boxed.apply(x).sin()

    return outer, [call(leaf(3))]


@program
def custom_function_whose_apply_calls_the_one_of_its_base():
    class Doubled(Exp):
        @classmethod
        def apply(cls, x):
            return super().apply(x * 2)

    def outer(x):
        return Doubled.apply(x) + 1

    return outer, [call(leaf(3))]


@program
def custom_function_that_sets_the_dtype_of_its_gradient():
    class InDouble(Function):
        @staticmethod
        def forward(ctx, x):
            if hasattr(ctx, "set_output_grad_dtype"):  # torch 2.15
                ctx.set_output_grad_dtype(torch.float64)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return (gradient * (7 if gradient.dtype == torch.float64 else 5)).float()

    def outer(x):
        return InDouble.apply(x).sin()

    return outer, [call(leaf(3))]


@program
def custom_function_with_gradients_under_inference_mode():
    def outer(x):
        with torch.enable_grad():
            y, z = StraightThrough.apply(x), x * 2
        return y, z, y.requires_grad, z.requires_grad

    return outer, [call(leaf(3)), under(torch.inference_mode, leaf(3)), under(torch.no_grad, leaf(3))]


@program
def custom_function_with_silent_results_of_varying_size():
    class Largest(Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            y = x * w
            places = y.argmax(-1)
            ctx.mark_non_differentiable(places)
            return places, y, x.sum()

        @staticmethod
        def backward(ctx, of_places, gradient, of_sum):
            x, w = ctx.saved_tensors
            return gradient * w + of_sum + of_places[:, None], (gradient * x).sum(0)

    def outer(x, w):
        return Largest.apply(x, w)

    return outer, [call(leaf(rows, 3), leaf(3)) for rows in (2, 4, 5)]
