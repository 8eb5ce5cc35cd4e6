"""Transforms of `torch.func` written inside compiled functions: gradients, batching and Jacobians of the user's functions."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

from tests.conformance.catalogue import after, call, count, leaf, normal, positive, program, under


@program(core=True)
def gradient_of_a_function():
    def energy(x):
        return (x.sin() * x).sum()

    def f(x):
        return grad(energy)(x) + x

    return f, [call(normal(4)), call(normal(4)), call(normal(6))]


@program
def gradient_with_value_and_auxiliary():
    def loss(weight, x, y):
        prediction = x @ weight
        return ((prediction - y) ** 2).mean(), prediction

    def f(weight, x, y):
        gradients, (value, prediction) = grad_and_value(loss, has_aux=True)(weight, x, y)
        return weight - 0.1 * gradients, value, prediction

    return f, [call(normal(3), normal(5, 3), normal(5)), call(normal(3), normal(5, 3), normal(5))]


@program(core=True)
def batched_dot_products():
    def f(x, y):
        return vmap(torch.dot)(x, y), vmap(lambda a, b: a @ b.T, in_dims=(0, None))(x[:, None], y)

    return f, [call(normal(3, 4), normal(3, 4)), call(normal(5, 4), normal(5, 4))]


@program
def batched_over_other_dimensions():
    def f(x, y):
        outer = vmap(lambda a, b: (a * b, a.sum() + b), in_dims=(1, 0), out_dims=(1, 0))
        return outer(x, y)

    return f, [call(normal(2, 3), normal(3, 2)), call(normal(2, 3), normal(3, 2))]


@program
def batched_with_closure_and_dictionary():
    scale = torch.tensor(3.0)

    def f(batch):
        return vmap(lambda item: {"a": item["x"] * scale, "b": item["x"].sum() - item["y"]})(batch)

    return f, [call({"x": normal(3, 2), "y": normal(3)}), call({"x": normal(3, 2), "y": normal(3)})]


@program
def per_sample_gradients():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def loss(parameters, x, y):
        return ((functional_call(model, parameters, (x[None],)) - y) ** 2).mean()

    def f(parameters, x, y):
        return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)

    parameters = {name: value.detach() for name, value in model.named_parameters()}
    return f, [call(parameters, normal(5, 3), normal(5)), call(parameters, normal(5, 3), normal(5))]


@program
def jacobians_forward_and_reverse():
    def g(x):
        return torch.stack([x.prod(), x.sum() ** 2, x[0].exp()])

    def f(x):
        return jacrev(g)(x), jacfwd(g)(x), hessian(lambda v: g(v).sum())(x)

    return f, [call(positive(3)), call(positive(3))]


@program
def jacobian_of_views_that_the_function_takes_too():
    def line(p, x):
        a, b = p.unbind()
        return a * x + b, p[1:] * x

    def f(p, x):
        return line(p, x), jacfwd(line)(p, x), jacfwd(jacrev(line))(p, x)

    return f, [call(normal(2), normal(5)), call(normal(2), normal(6)), call(normal(2), normal(7))]


@program
def products_with_jacobians():
    def g(x):
        return x.tanh() * x[0]

    def f(x, v):
        value, pull = vjp(g, x)
        (back,) = pull(v)
        forward, tangent = jvp(g, (x,), (v,))
        return value, back, forward, tangent

    return f, [call(normal(4), normal(4)), call(normal(4), normal(4))]


@program
def gradients_flow_through_a_transform():
    def energy(x, w):
        return (x * w).sin().sum()

    def f(x, w):
        force = grad(energy)(x, w)
        return (force**2).sum()

    return f, [call(leaf(4), leaf(4)), call(leaf(4), leaf(4))]


@program
def ensemble_of_models():
    models = [nn.Linear(3, 2) for _ in range(4)]
    skeleton = nn.Linear(3, 2)

    def f(x):
        parameters, buffers = stack_module_state(models)
        return vmap(lambda p, b, v: functional_call(skeleton, (p, b), (v,)), in_dims=(0, 0, None))(parameters, buffers, x)

    return f, [call(normal(5, 3)), call(normal(5, 3))]


@program
def ensemble_of_stacked_parameters():
    skeleton = nn.Sequential(nn.Linear(3, 2), nn.ReLU())

    def f(parameters, x):
        return vmap(lambda p, v: functional_call(skeleton, p, (v,)), in_dims=(0, 0))(parameters, x)

    stacked = {"0.weight": normal(4, 2, 3), "0.bias": normal(4, 2)}
    return f, [call(stacked, normal(4, 3)), call(stacked, normal(4, 3))]


@program
def meta_learning_with_grad():
    def predict(w, x):
        return torch.tanh(x @ w)

    def inner(w, x, y):
        return ((predict(w, x) - y) ** 2).mean()

    def f(w, x, y):
        adapted = w - 0.1 * grad(inner)(w, x, y)
        return inner(adapted, x, y)

    return f, [call(leaf(3), normal(5, 3), normal(5)), call(leaf(3), normal(5, 3), normal(5))]


@program
def laplacian_by_nested_transforms():
    def potential(x):
        return (x**3).sum() + x.prod()

    def f(points):
        return vmap(lambda x: torch.trace(jacrev(grad(potential))(x)))(points)

    return f, [call(normal(5, 3)), call(normal(5, 3))]


@program
def side_effects_inside_a_transform():
    seen = []

    def energy(x):
        seen.append(tuple(x.shape))
        return (x**2).sum()

    def f(x):
        y = grad(energy)(x)
        seen.append("done")
        return y

    return f, [call(normal(3)), call(normal(3)), call(normal(4))], seen


@program
def mutation_inside_a_transform():
    def step(x):
        y = x.clone()
        y[0] = 2.0
        y.mul_(3)
        return y

    def f(x):
        return vmap(step)(x), grad(lambda v: step(v).sum())(x[0])

    return f, [call(normal(3, 2)), call(normal(3, 2))]


@program(raises=ValueError)
def batch_sizes_that_do_not_fit():
    def f(x, y):
        return vmap(torch.add)(x, y)

    return f, [call(normal(3), normal(4)), call(normal(3), normal(3))]


@program(raises=RuntimeError)
def gradient_of_a_vector_function():
    def f(x):
        return grad(torch.sin)(x)

    return f, [call(normal(3)), call(normal(2))]


@program
def transform_made_outside():
    derivative = grad(lambda x: x.cos().sum())
    batched = vmap(derivative)

    def f(x):
        return derivative(x[0]), batched(x)

    return f, [call(normal(3, 2)), call(normal(3, 2))]


@program
def transform_as_decorator():
    @vmap
    def rowwise(row):
        return row / row.norm()

    @grad
    def slope(x):
        return x.pow(3).sum()

    def f(x):
        return rowwise(x) + slope(x)

    return f, [call(normal(3, 2)), call(normal(3, 2))]


@program
def tied_weights_called_functionally():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            return self.head(self.embedding(x))

    model = Tied()

    def f(weight, x):
        return functional_call(model, {"embedding.weight": weight}, (x,))

    return f, [call(normal(5, 3), torch.tensor([1, 2])), call(leaf(5, 3), torch.tensor([0, 4]))], model


@program
def random_numbers_in_a_batch():
    def f(x):
        return vmap(lambda v: v + torch.rand_like(v), randomness="different")(x), vmap(
            lambda v: v * torch.randn(()), randomness="same")(x)

    return f, [call(normal(3, 2)), call(normal(3, 2))]


@program
def gradient_with_respect_to_several():
    def loss(a, b, c):
        return (a * b + c).pow(2).sum()

    def f(a, b, c):
        return grad(loss, argnums=(0, 2))(a, b, c), grad(loss, argnums=1)(a, b, c)

    return f, [call(normal(3), normal(3), normal(3)), call(normal(3), normal(3), normal(3))]


@program
def gradient_of_a_tree_of_parameters():
    def loss(parameters, x):
        return (x @ parameters["w"][0] + parameters["b"]).tanh().sum()

    def f(parameters, x):
        return grad(loss)(parameters, x)

    return f, [call({"w": [normal(3, 2)], "b": normal(2)}, normal(4, 3)), call({"w": [normal(3, 2)], "b": normal(2)}, normal(4, 3))]


@program
def autograd_grad_of_inputs():
    def f(x, w):
        energy = (x * w).sin().sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return -force

    return f, [call(leaf(3), leaf(3)), call(leaf(3), leaf(3))]


@program
def chunked_batches():
    def f(x):
        return vmap(lambda v: v.cumsum(0) * 2, chunk_size=2)(x)

    return f, [call(normal(5, 2)), call(count(5, 2))]


@program
def a_number_closed_over_by_a_transformed_function():
    settings = {"power": 2}

    def f(x, factor):
        return grad(lambda v: (factor * v ** settings["power"]).sum())(x)

    return f, [call(count(3), 2.0), call(count(3), 3.0), after(lambda: settings.update(power=3), count(3), 3.0)]


@program
def arguments_changed_in_a_batch():
    def double(row):
        return row.mul_(2)

    def f(x):
        y = vmap(double)(x)
        return y + 1, x[0]

    return f, [call(normal(3, 2)), call(normal(3, 2))]


@program
def views_made_in_a_batch():
    def f(x):
        first = vmap(lambda row: row[0])(x)
        same = vmap(lambda row: row)(x)
        first.add_(1)
        return first, same, same is x

    return f, [call(normal(3, 2)), call(normal(3, 2))]


@program
def tensors_kept_from_inside_a_transform():
    seen = []

    def f(x):
        def energy(v):
            y = v.sin()
            seen.append(tuple(y.shape))
            return (y * v).sum(), y

        slope, kept = grad(energy, has_aux=True)(x)
        return slope + kept

    return f, [call(normal(2)), call(normal(2)), call(normal(3))], seen


@program
def primals_changed_before_they_are_pulled_back():
    def f(x, v, change):
        y = x * 2
        value, pull = vjp(lambda t: t.sin(), y)
        if change:
            y.add_(1)
        return value, *pull(v)

    return f, [call(normal(2), normal(2), False), call(normal(2), normal(2), True)]


@program
def gradient_without_gradients_around():
    def f(x, w):
        with torch.no_grad():
            inside = grad(lambda v: (v * w).pow(2).sum())(x)

        def partly(v):
            with torch.no_grad():
                c = v**2
            return (v**3 - c * v).sum()

        return inside, grad(partly)(x), torch.is_grad_enabled()

    return f, [call(normal(2), leaf(2)), call(normal(2), leaf(2))]


@program
def pulled_back_in_a_batch():
    def f(x):
        value, pull = vjp(lambda v: torch.stack([v.prod(), v.sum()]), x)
        (rows,) = vmap(pull)(torch.eye(2))
        return value, rows

    return f, [call(positive(3)), call(positive(3))]


@program
def pulled_back_under_inference_mode():
    def f(x, v):
        value, pull = vjp(lambda x: x.sin() * x, x)
        return value, pull(v)

    return f, [under(torch.inference_mode, count(3), normal(3)), call(count(4), normal(4)), under(torch.inference_mode, count(4), normal(4))]


@program
def names_of_transformed_functions_behind_a_break():
    def energy(x):
        """Of a state."""
        return x.sin().sum()

    def f(x):
        made = grad(energy), vmap(energy), jacrev(energy)
        print("between")
        return [(one.__name__, one.__doc__, one.__wrapped__ is energy) for one in made], made[0](x)

    return f, [call(normal(2)), call(normal(2))]


@program
def leaves_that_transforms_refuse():
    def asks(x):
        return x.requires_grad_().sin().sum()

    def keeps(x):
        y = x.sin()
        y.retain_grad()
        return y.sum()

    def f(x):
        refused = []
        for transformed in (vmap(asks), grad(asks), vmap(grad(asks)), grad(keeps)):
            try:
                refused.append(transformed(x))
            except RuntimeError as error:
                refused.append(str(error)[:40])
        return refused, x * 2

    return f, [call(normal(2)), call(normal(2))]
