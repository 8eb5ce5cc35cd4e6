"""Programs about `nn.Module`: calls, hooks, buffers, containers, sharing, laziness, functional calls."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.conformance.catalogue import after, call, count, integers, leaf, normal, program, under


class Mlp(nn.Module):
    """Two linear layers."""

    def __init__(self, width=4, hidden=8):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


@program(core=True)
def module_as_entry():
    return Mlp(), [call(normal(2, 4)), call(normal(2, 4)), call(normal(3, 4))]


@program(core=True)
def module_in_a_closure():
    module = Mlp()

    def outer(x):
        return module(x) + x

    return outer, [call(normal(2, 4)), call(leaf(2, 4))], module


@program
def module_as_argument():
    def outer(module, x):
        return module(x).sum()

    return outer, [call(Mlp(), normal(2, 4)), call(nn.Linear(4, 3), normal(2, 4)), call(Mlp(), normal(2, 4))]


@program(core=True)
def sequential():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2)), [call(normal(3, 4)), call(leaf(5, 4))]


@program
def sequential_sliced_and_indexed():
    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def outer(x):
        for layer in layers[:2]:
            x = layer(x)
        return layers[-1](x), len(layers), layers[0].in_features

    return outer, [call(normal(2, 4))], layers


@program
def module_list_with_index_and_loop():
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x, skip):
            for i, layer in enumerate(self.layers):
                if i != skip:
                    x = torch.tanh(layer(x))
            return self.layers[skip](x) + len(self.layers)

    return Stack(), [call(normal(2, 4), 0), call(normal(2, 4), 2), call(normal(2, 4), 0)]


@program
def module_dict_by_key():
    heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})

    def outer(x, name):
        if name in heads:
            return heads[name](x)
        return {key: head(x) for key, head in heads.items()}

    return outer, [call(normal(2, 4), "a"), call(normal(2, 4), "b"), call(normal(2, 4), "all")], heads


@program
def parameter_list_and_dict():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(normal(4)) for _ in range(2)])
            self.named = nn.ParameterDict({"bias": nn.Parameter(normal(4))})

        def forward(self, x):
            for weight in self.weights:
                x = x * weight
            return x + self.named["bias"] + self.weights[0]

    return Mixture(), [call(normal(2, 4)), call(normal(4))]


@program
def tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens)), self.head.weight is self.embed.weight

    return Tied(), [call(integers(3)), call(integers(2, 3))]


@program(core=True)
def buffer_updated_in_forward():
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("steps", torch.tensor(0), persistent=False)

        def forward(self, x):
            if self.training:
                self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
                self.steps += 1
            return x - self.mean

    module = Running()
    return module, [call(normal(2, 3)), call(leaf(2, 3)), after(module.eval, normal(2, 3)), after(module.train, normal(2, 3))]


@program
def buffer_replaced_in_forward():
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", None)

        def forward(self, x):
            previous = x if self.last is None else self.last
            self.last = x.detach() * 2
            return x + previous

    return Running(), [call(normal(2)), call(normal(2)), call(normal(2))]


@program(core=True)
def batch_norm_train_and_eval():
    module = nn.BatchNorm1d(3)
    return module, [
        call(normal(4, 3)),
        call(leaf(5, 3)),
        after(module.eval, normal(4, 3)),
        after(module.train, normal(4, 3)),
    ]


@program
def dropout_in_both_modes():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    return module, [call(normal(2, 4)), after(module.eval, normal(2, 4)), after(module.train, normal(2, 4))]


@program
def training_flag_of_one_child():
    module = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    return module, [call(torch.ones(8)), after(module[0].eval, torch.ones(8)), after(module.eval, torch.ones(8))]


@program(core=True)
def forward_hooks():
    log = []
    module = Mlp()
    module.up.register_forward_pre_hook(lambda layer, args: (args[0] * 2,))
    module.down.register_forward_hook(lambda layer, args, output: log.append(tuple(output.shape)))
    module.register_forward_hook(lambda layer, args, output: output + 1)
    return module, [call(normal(2, 4)), call(normal(3, 4))], log


@program
def hooks_with_keywords():
    class Scale(nn.Module):
        def forward(self, x, *, factor=1.0):
            return x * factor

    module = Scale()
    module.register_forward_pre_hook(lambda m, args, kwargs: (args, {"factor": kwargs["factor"] + 1}), with_kwargs=True)
    module.register_forward_hook(lambda m, args, kwargs, output: (output, kwargs["factor"]), with_kwargs=True)

    def outer(x, factor):
        return module(x, factor=factor)

    return outer, [call(count(2), 1.0), call(count(2), 2.0)]


@program
def hook_added_and_removed_between_calls():
    module = nn.Linear(2, 2)
    handles = []

    def add():
        handles.append(module.register_forward_hook(lambda m, args, output: output * 100))

    return module, [call(normal(2)), after(add, normal(2)), after(lambda: handles.pop().remove(), normal(2))]


@program
def full_backward_hook():
    log = []
    module = nn.Linear(3, 2)
    module.register_full_backward_hook(lambda m, grad_in, grad_out: log.append(tuple(grad_out[0].shape)))

    def outer(x):
        return module(x) * 2

    return outer, [call(leaf(2, 3))], log


@program
def forward_called_directly_skips_hooks():
    module = nn.Linear(2, 2)
    module.register_forward_hook(lambda m, args, output: output * 100)

    def outer(x):
        return module.forward(x), module(x)

    return outer, [call(normal(2))], module


@program
def parameter_replaced_between_calls():
    module = nn.Linear(2, 2)

    def replace():
        module.weight = nn.Parameter(torch.ones(2, 2))

    def drop_bias():
        module.bias = None

    return module, [call(normal(2)), after(replace, normal(2)), after(drop_bias, normal(2))]


@program
def parameter_data_changed_between_calls():
    module = nn.Linear(2, 2)

    def double():
        with torch.no_grad():
            module.weight.mul_(2)

    def load():
        module.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.zeros(2)})

    return module, [call(normal(2)), after(double, normal(2)), after(load, normal(2))]


@program
def parameters_frozen_between_calls():
    module = Mlp()
    return module, [
        call(leaf(2, 4)),
        after(lambda: module.up.requires_grad_(False), leaf(2, 4)),
        after(lambda: module.requires_grad_(False), leaf(2, 4)),
    ]


@program
def child_replaced_between_calls():
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def replace():
        module[1] = nn.Tanh()

    return module, [call(normal(2)), after(replace, normal(2)), after(lambda: module.append(nn.Linear(2, 1)), normal(2))]


@program
def module_attribute_changed_between_calls():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 2.0
            self.names = ["a"]

        def forward(self, x):
            return x * self.scale + len(self.names)

    module = Scaled()
    return module, [
        call(count(2)),
        after(lambda: setattr(module, "scale", 3.0), count(2)),
        after(lambda: module.names.append("b"), count(2)),
    ]


@program
def attribute_created_lazily():
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.cached_length = 0

        def forward(self, x):
            if x.shape[0] > self.cached_length:
                self.table = torch.arange(float(x.shape[0])) * 0.5
                self.cached_length = x.shape[0]
            return x * self.table[: x.shape[0]]

    return Rotary(), [call(normal(3)), call(normal(2)), call(normal(5)), call(normal(4))]


@program
def parameter_created_in_forward():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = None

        def forward(self, x):
            if self.weight is None:
                self.weight = nn.Parameter(torch.full((x.shape[-1],), 2.0))
            return x * self.weight

    return Lazy(), [call(normal(3)), call(normal(3))]


@program
def lazy_linear():
    return nn.Sequential(nn.LazyLinear(3), nn.ReLU()), [call(normal(2, 5)), call(normal(2, 5))]


@program(core=True)
def functional_call():
    module = Mlp()
    weights = {name: torch.zeros_like(value) + 0.1 for name, value in module.named_parameters()}

    def outer(x, scale):
        changed = {name: value * scale for name, value in weights.items()}
        return torch.func.functional_call(module, changed, (x,))

    return outer, [call(normal(2, 4), 1.0), call(normal(2, 4), 2.0)], module


@program
def iteration_over_parameters_and_buffers():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))

    def outer(x):
        norm = sum(p.pow(2).sum() for p in module.parameters())
        names = [name for name, _ in module.named_parameters()] + [name for name, _ in module.named_buffers()]
        return module(x) * norm, names, sum(p.numel() for p in module.parameters() if p.requires_grad)

    return outer, [call(normal(4, 2))], module


@program
def state_dict_and_named_modules():
    module = Mlp()

    def outer(x):
        kinds = [type(child).__name__ for _, child in module.named_modules()]
        return module(x) + module.state_dict()["down.bias"], kinds, [name for name, _ in module.named_children()]

    return outer, [call(normal(2, 4))]


@program
def get_submodule_and_parameter():
    module = nn.Sequential(Mlp(), nn.Linear(4, 4))

    def outer(x):
        return module.get_submodule("0.up")(x), module.get_parameter("1.bias"), module[0].up is module.get_submodule("0.up")

    return outer, [call(normal(2, 4))]


@program
def submodule_apply_and_train_inside():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))

    def outer(x):
        module.eval()
        y = module(x)
        module.train()
        return y, module(x).shape

    return outer, [call(normal(2))], module


@program
def module_created_in_the_frame():
    def outer(x):
        layer = nn.LayerNorm(x.shape[-1])
        return layer(x), nn.ReLU()(x), nn.CrossEntropyLoss()(x, torch.zeros(2, dtype=torch.long))

    return outer, [call(normal(2, 3)), call(normal(2, 4))]


@program
def module_with_random_init_created_in_the_frame():
    def outer(x):
        layer = nn.Linear(x.shape[-1], 2)
        return layer(x)

    return outer, [call(normal(2, 3)), call(normal(2, 3))]


@program
def module_getattr_override():
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return self.inner(x) * self.in_features + self.weight.sum()

    return Wrapper(nn.Linear(3, 2)), [call(normal(2, 3))]


@program
def module_with_properties_and_class_constants():
    class Attention(nn.Module):
        heads = 2

        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        @property
        def head_dim(self):
            return self.qkv.in_features // self.heads

        @property
        def device(self):
            return next(self.parameters()).device

        def forward(self, x):
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.transpose(1, 2).reshape(x.shape).to(self.device)

    return Attention(), [call(normal(2, 3, 4)), call(leaf(1, 5, 4))]


@program
def module_that_returns_structures():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

        def forward(self, x, output_hidden=False):
            hidden = (x,)
            for layer in self.layers:
                x = layer(x)
                hidden += (x,)
            return {"last": x, "hidden": hidden} if output_hidden else (x, None)

    return Encoder(), [call(normal(2, 4)), call(normal(2, 4), output_hidden=True)]


@program
def module_called_twice_with_shared_state():
    layer = nn.Linear(3, 3)

    def outer(x):
        return layer(layer(x)) + functional.linear(x, layer.weight.t(), layer.bias)

    return outer, [call(leaf(2, 3))], layer


@program
def same_class_different_settings():
    class Block(nn.Module):
        def __init__(self, scale, norm):
            super().__init__()
            self.scale, self.norm = scale, nn.LayerNorm(3) if norm else nn.Identity()

        def forward(self, x):
            return self.norm(x) * self.scale

    blocks = [Block(1.0, True), Block(2.0, False), Block(3.0, True)]

    def outer(x):
        for block in blocks:
            x = block(x)
        return x

    return outer, [call(normal(2, 3))]


@program
def recurrent_cells_and_lstm():
    cell, lstm = nn.GRUCell(3, 4), nn.LSTM(3, 4, batch_first=True)

    def outer(xs):
        h = torch.zeros(xs.shape[0], 4)
        for step in xs.unbind(1):
            h = cell(step, h)
        output, (last, _) = lstm(xs)
        return h, output, last

    return outer, [call(normal(2, 3, 3)), call(normal(2, 4, 3))], (cell, lstm)


@program
def transformer_encoder_layer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return layer, [call(normal(2, 3, 8)), call(leaf(2, 3, 8)), after(layer.eval, normal(2, 3, 8)), under(torch.no_grad, normal(2, 3, 8))]


@program
def convolution_block():
    block = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten())
    return block, [call(normal(2, 2, 4, 4)), call(leaf(1, 2, 6, 6))]


@program
def embedding_with_padding_and_bag():
    embed, bag = nn.Embedding(6, 3, padding_idx=0), nn.EmbeddingBag(6, 2, mode="sum")

    def outer(tokens):
        return embed(tokens).sum(1), bag(tokens)

    return outer, [call(integers(2, 3, high=6)), call(integers(1, 4, high=6))], (embed, bag)


@program
def weight_norm_parametrization():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    return module, [call(normal(2, 3)), call(normal(2, 3))]


@program
def gradient_clipping_in_the_frame():
    module = nn.Linear(3, 2)

    def outer(x):
        loss = module(x).pow(2).sum() * 100
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        return loss.detach(), norm

    return outer, [call(normal(2, 3)), after(module.zero_grad, normal(2, 3))], module


@program
def module_call_override():
    class Timed(nn.Module):
        def __call__(self, x, **options):
            self.calls = getattr(self, "calls", 0) + 1
            return super().__call__(x, **options)

        def forward(self, x):
            return x * self.calls

    return Timed(), [call(count(2)), call(count(2))]


@program
def bound_method_of_a_module_other_than_forward():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(3, 2)

        def encode(self, x, *, normalize=False):
            z = self.encoder(x)
            return functional.normalize(z, dim=-1) if normalize else z

    return Model().encode, [call(normal(2, 3)), call(normal(2, 3), normalize=True)]


class Reversible(nn.Module):
    """Runs its layers forwards, and back in an order of the user's own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def __len__(self):
        return 2

    def __getitem__(self, place):
        return self.layers[place]

    def forward(self, x):
        for layer in reversed(self.layers):
            x = layer(x)
        for layer in reversed(self):
            x = layer(x).tanh()
        return x


class Backwards:
    """An object with a `__reversed__`."""

    def __init__(self, items):
        self.items = items

    def __reversed__(self):
        yield from self.items[::-2]


@program(core=True)
def layers_from_last_to_first():
    return Reversible(), [call(normal(2, 4)), call(leaf(3, 4))]


@program
def objects_that_say_how_they_are_reversed():
    items = Backwards([1.0, 2.0, 3.0])
    return lambda x: [x * item for item in reversed(items)], [call(normal(2)), call(leaf(3))]
