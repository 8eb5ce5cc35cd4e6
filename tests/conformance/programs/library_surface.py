"""Programs that use PyTorch beyond its operators: hooks, `.data` and `.grad`, leaves made inside, transforms, settings."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

from tests.conformance.catalogue import after, call, integers, leaf, normal, positive, program


@torch.library.custom_op("conformance::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return x**3

cube.register_fake(lambda x: torch.empty_like(x))
cube.register_autograd(lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
                       setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))


@program(core=True)
def full_backward_hook_on_a_submodule():
    model, log = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), []
    model[0].register_full_backward_hook(lambda module, into, out: log.append((len(into), out[0].shape[0])))

    def outer(x):
        return model(x * 2).sum() + 1

    return outer, [call(leaf(2, 3)), call(leaf(4, 3))], (model, log)


@program
def backward_hook_that_changes_the_gradient():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    model[0].register_full_backward_pre_hook(lambda module, out: (out[0] * 2,))
    model[1].register_full_backward_hook(lambda module, into, out: (into[0] * 3,))
    return model, [call(leaf(2, 3)), call(normal(2, 3))], model


@program
def forward_hooks_of_every_sort():
    model, seen = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), []
    model[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[0].register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape)))
    model[1].register_forward_pre_hook(lambda module, args, kwargs: (args, kwargs), with_kwargs=True)
    model[1].register_forward_hook(lambda module, args, kwargs, output: output * 2, with_kwargs=True)

    def outer(x):
        return model(x) - 1

    return outer, [call(normal(2, 3)), call(leaf(3, 3))], (model, seen)


@program
def features_collected_by_a_hook():
    model, features = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), {}
    for name, layer in model.named_children():
        layer.register_forward_hook(lambda module, args, output, name=name: features.__setitem__(name, output.detach()))

    def outer(x):
        features.clear()
        y = model(x)
        return y, features["0"].mean()

    return outer, [call(normal(2, 3)), call(leaf(3, 3))], features


@program
def hook_registered_inside_and_removed():
    layer = nn.Linear(3, 3)

    def outer(x):
        handle = layer.register_forward_hook(lambda module, args, output: output + 10)
        y = layer(x)
        handle.remove()
        return y + layer(x)

    return outer, [call(normal(2, 3)), call(normal(2, 3))], layer


@program
def tensor_hook_on_an_intermediate():
    def outer(x):
        y = x * 2
        y.register_hook(lambda gradient: gradient * 3)
        z = y.sin()
        return (z * z).sum()

    return outer, [call(leaf(3)), call(leaf(2))]


@program
def hook_after_gradients_are_accumulated():
    log = []
    layer = nn.Linear(2, 2)
    for parameter in layer.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: log.append(tuple(p.grad.shape)))

    def outer(x):
        loss = layer(x).sum()
        loss.backward()
        log.sort()
        return loss.detach()

    return outer, [call(normal(3, 2)), call(normal(3, 2))], log


@program(core=True)
def leaf_made_in_the_frame():
    def outer(x):
        w = torch.ones(3, requires_grad=True)
        v = torch.zeros(3).requires_grad_()
        loss = (x * w + v).pow(2).sum()
        loss.backward()
        return w.grad, v.grad, loss.detach()

    return outer, [call(normal(3)), call(leaf(3))]


@program
def leaf_made_in_the_frame_and_returned():
    def outer(x):
        w = torch.randn(2, 2, requires_grad=True)
        return (x @ w).sum(), w

    return outer, [call(normal(3, 2)), call(leaf(2, 2))]


@program
def parameter_made_in_the_frame():
    def outer(x, y):
        weight = nn.Parameter(torch.zeros(x.shape[1]))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            ((x @ weight - y) ** 2).mean().backward()
            optimizer.step()
        return weight.detach(), isinstance(weight, nn.Parameter)

    return outer, [call(normal(4, 2), normal(4)), call(normal(3, 2), normal(3))]


@program
def module_made_in_the_frame():
    def outer(x):
        layer = nn.Linear(x.shape[-1], 2)
        nn.init.constant_(layer.weight, 0.5)
        nn.init.zeros_(layer.bias)
        return layer(x), layer.weight.shape

    return outer, [call(normal(2, 3)), call(normal(1, 4))]


@program
def data_read_and_written():
    parameter = nn.Parameter(torch.ones(3))

    def outer(x):
        before = parameter.data * 2
        parameter.data.mul_(2).add_(x)
        parameter.data[0] = 7
        parameter.data.view(-1)[1:].sub_(1)
        return before, parameter * 1

    return outer, [call(normal(3)), call(normal(3))], parameter


@program
def weight_data_replaced():
    layer = nn.Linear(2, 2)

    def outer(x):
        layer.weight.data = layer.weight.data.clamp(-0.1, 0.1)
        return layer(x)

    return outer, [call(normal(2, 2)), call(leaf(2, 2))], layer


@program
def data_written_after_it_was_read_with_a_gradient():
    weight = leaf(3)

    def outer(x):
        y = (weight * x).sin()
        weight.data.clamp_(-0.1, 0.1)
        return y.sum()

    return outer, [call(normal(3)), call(normal(3))], weight


@program
def weight_clipping():
    critic = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))

    def outer(x, limit):
        for parameter in critic.parameters():
            parameter.data.clamp_(-limit, limit)
        return critic(x).mean()

    return outer, [call(normal(2, 2), 0.1), call(normal(2, 2), 0.05)], critic


@program
def gradient_attributes_written():
    weight = leaf(3)

    def outer(x):
        weight.grad = x.clone()
        weight.grad.mul_(2)
        total = weight.grad + 1
        weight.grad = total * 2
        return total, weight.grad is not None

    return outer, [call(normal(3)), call(normal(3))], weight


@program
def gradients_zeroed_by_the_module():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def outer(x, keep):
        model.zero_grad(set_to_none=not keep)
        model(x).sum().backward()
        return [parameter.grad.sum() for parameter in model.parameters()]

    return outer, [call(normal(2, 2), False), call(normal(2, 2), True), call(normal(2, 2), True)], model


@program
def gradients_scaled_by_hand():
    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    def outer(factor):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= factor
        total = torch.sqrt(sum(parameter.grad.pow(2).sum() for parameter in model.parameters()))
        return total

    return outer, [call(0.5), call(0.5)], model


@program
def clipping_in_all_ways():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))

    def fill():
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 2.0)

    def outer(kind):
        if kind == "norm":
            return nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if kind == "infinity":
            return nn.utils.clip_grad_norm_(list(model.parameters()), 0.5, norm_type=float("inf"))
        nn.utils.clip_grad_value_(model.parameters(), 0.25)
        return torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])

    return outer, [after(fill, "norm"), after(fill, "infinity"), after(fill, "value")], model


@program
def optimizer_step_compiled_by_itself():
    weight = leaf(3)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.5)

    def fill():
        weight.grad = torch.ones(3)

    def step():
        return optimizer.step()

    return step, [after(fill), after(fill)], weight


@program
def optimizer_step_with_a_closure():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = model(x).pow(2).sum()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return step, [call(normal(3, 2)), call(normal(3, 2))], model


@program
def functional_call_with_other_weights():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))

    def outer(weights, x):
        return torch.func.functional_call(model, weights, (x,)) + model(x)

    def weights():
        return {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}

    return outer, [call(weights(), normal(2, 2)), call(weights(), leaf(3, 2))], model


@program
def functional_call_with_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.two(self.one(x))

    model = Tied()

    def outer(weight, x):
        return torch.func.functional_call(model, {"one.weight": weight}, (x,)) * 2

    return outer, [call(normal(2, 2), normal(3, 2)), call(leaf(2, 2), normal(3, 2))], model


@program
def functional_call_of_batch_norm():
    model = nn.BatchNorm1d(2)

    def outer(state, x):
        y = torch.func.functional_call(model, state, (x,))
        return y, state["running_mean"] * 1

    def state():
        return {name: value.detach().clone() for name, value in model.state_dict().items()}

    return outer, [call(state(), normal(4, 2)), call(state(), normal(3, 2))], model


@program
def ensemble_through_vmap():
    models = [nn.Linear(2, 1) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = models[0]

    def outer(x):
        y = x * 2

        def one(weights, others, values):
            return torch.func.functional_call(base, (weights, others), (values,))

        return torch.vmap(one, in_dims=(0, 0, None))(parameters, buffers, y).mean(0) + 1

    return outer, [call(normal(4, 2)), call(normal(2, 2))]


@program
def transforms_between_captured_parts():
    def outer(x):
        y = x.sin()
        slope = torch.func.grad(lambda v: (v**3).sum())(y)
        jacobian = torch.func.jacrev(torch.tanh)(slope[:2])
        return jacobian.sum() + slope * 2

    return outer, [call(normal(3)), call(normal(4))]


@program
def spectral_and_weight_norm():
    one = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    two = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    model = nn.Sequential(one, nn.ReLU(), two)
    return model, [call(normal(2, 3)), call(leaf(2, 3))], model


@program
def parametrization_by_the_user():
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).transpose(-1, -2)

    layer = nn.Linear(3, 3)
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())

    def outer(x):
        with nn.utils.parametrize.cached():
            return layer(x) + layer(x * 2)

    return outer, [call(normal(2, 3)), call(leaf(2, 3))], layer


@program
def pruned_layer():
    layer = nn.Linear(4, 3)
    prune.l1_unstructured(layer, "weight", amount=0.5)

    def outer(x):
        return layer(x).relu()

    return outer, [call(normal(2, 4)), call(leaf(2, 4))], layer


@program
def seed_set_and_forked_inside():
    def outer(x, seed):
        torch.manual_seed(seed)
        y = x + torch.rand(3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            z = torch.rand(3)
        return y, z, torch.rand(2)

    return outer, [call(normal(3), 1), call(normal(3), 2)]


@program
def generator_passed_in():
    def outer(x, generator):
        noise = torch.randn(x.shape, generator=generator)
        order = torch.randperm(x.shape[0], generator=generator)
        return (x + noise)[order] * 2

    return outer, [call(normal(3), torch.Generator().manual_seed(3)), call(normal(4), torch.Generator().manual_seed(4))]


@program
def out_arguments_of_several_kinds():
    def outer(x, into):
        torch.add(x, 1, out=into)
        fresh = torch.empty(0)
        torch.mul(x, 2, out=fresh)
        values, index = torch.empty(x.shape[0]), torch.empty(x.shape[0], dtype=torch.long)
        torch.max(x, 1, out=(values, index))
        return into, fresh, values, index

    return outer, [call(normal(2, 3), torch.zeros(2, 3)), call(normal(3, 2), torch.zeros(3, 2))]


@program
def default_dtype_changed_and_put_back():
    def outer(x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            y = torch.ones(2) + torch.tensor(1.5)
        finally:
            torch.set_default_dtype(before)
        return y, x + torch.ones(2)

    return outer, [call(normal(2)), call(normal(2))]


@program
def default_device_as_a_context():
    def outer(x):
        with torch.device("meta"):
            shape = torch.empty(3, 4)
        return x * shape.shape[1], shape.device.type

    return outer, [call(normal(2)), call(normal(3))]


@program
def autocast_nested_and_as_decorator():
    layer = nn.Linear(3, 3)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def half(x):
        return layer(x)

    def outer(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
            with torch.autocast("cpu", enabled=False):
                z = layer(x)
            w = y @ y.t()
        return y.dtype, z, half(x).dtype, w.dtype, torch.is_autocast_enabled("cpu")

    return outer, [call(normal(2, 3)), call(leaf(2, 3))], layer


@program
def embedding_bags():
    bag = nn.EmbeddingBag(6, 3, mode="sum")
    mean = nn.EmbeddingBag(6, 3, mode="mean", padding_idx=0)

    def outer(tokens, offsets, weights):
        return bag(tokens, offsets, per_sample_weights=weights), mean(tokens.view(2, -1))

    return outer, [call(integers(6, high=6), torch.tensor([0, 2]), positive(6)), call(integers(4, high=6), torch.tensor([0, 3]), positive(4))
                   ], nn.ModuleList([bag, mean])


@program
def sparse_gradients():
    embedding = nn.Embedding(5, 2, sparse=True)

    def outer(tokens):
        loss = embedding(tokens).sum() * 2
        loss.backward()
        return embedding.weight.grad.to_dense()

    return outer, [call(torch.tensor([1, 2, 2])), call(torch.tensor([0]))], None


@program
def complex_numbers():
    def outer(x):
        spectrum = torch.fft.rfft(x)
        gain = torch.polar(torch.ones(spectrum.shape), torch.full(spectrum.shape, 0.5))
        return torch.fft.irfft(spectrum * gain), spectrum.abs(), torch.view_as_real(spectrum).sum()

    return outer, [call(normal(8)), call(leaf(2, 4))]


@program
def tensor_subclass_by_the_user():
    class Tagged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return super().__torch_function__(function, types, args, kwargs or {})

    def outer(x):
        y = x.as_subclass(Tagged)
        z = y * 2 + 1
        return type(z).__name__, z.as_subclass(torch.Tensor) * 3

    return outer, [call(normal(2)), call(normal(3))]


@program
def scripted_callee():
    @torch.jit.script
    def scale(x, factor: float):
        return x * factor + 1

    def outer(x):
        return scale(x.sin(), 2.0).cos()

    return outer, [call(normal(2)), call(leaf(3))]


@program
def function_compiled_by_torch_inside():
    compiled = torch.compile(lambda x: x.relu() * 2, backend="eager")

    def outer(x):
        return compiled(x + 1) - 1

    return outer, [call(normal(2)), call(leaf(3))]


@program
def custom_operator_with_a_gradient():
    def outer(x):
        return cube(x * 2).sum() + cube(x)

    return outer, [call(leaf(3)), call(normal(2))]


@program
def state_dict_round_trip():
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)

    def outer(x):
        state = model.state_dict()
        other.load_state_dict({name: value * 2 for name, value in state.items()})
        return other(x), sorted(state)

    return outer, [call(normal(2, 2)), call(normal(2, 2))], other


@program
def module_moved_and_cast():
    model = nn.Linear(2, 2)

    def outer(x):
        y = model.double()(x.double())
        model.float()
        return y, model.weight.dtype

    return outer, [call(normal(2, 2)), call(normal(2, 2))], model


@program
def training_flag_toggled():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3, affine=False), nn.Dropout(0.5))

    def outer(x):
        model.eval()
        with torch.inference_mode():
            y = model(x).sum().clone()
        model.train()
        return model(x).mean(), float(y) > 1e9, model.training

    return outer, [call(normal(4, 3)), call(normal(4, 3))], model


@program
def lazy_modules_made_ready():
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2))
    with torch.no_grad():
        model(torch.zeros(1, 4))
    return model, [call(normal(2, 4)), call(leaf(3, 4))], model


@program
def distributions_and_their_gradients():
    def outer(mean, spread):
        normal_one = torch.distributions.Normal(mean, functional.softplus(spread))
        sample = normal_one.rsample()
        other = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(spread))
        divergence = torch.distributions.kl_divergence(normal_one, other)
        return normal_one.log_prob(sample.detach()).sum(), divergence.sum(), sample

    return outer, [call(leaf(3), leaf(3)), call(leaf(2), leaf(2))]
