"""Programs that draw random numbers: the same seed must give the same run, and generators must end where eager's do."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.conformance.catalogue import call, count, leaf, normal, positive, program


@program(core=True)
def random_factories():
    def outer(x):
        return torch.rand(3) + torch.randn(3) + torch.rand_like(x) * torch.randn_like(x), torch.randint(0, 5, (4,)), torch.randperm(5)

    return outer, [call(normal(3)), call(normal(2, 3))]


@program(core=True)
def dropout_with_gradients():
    def outer(x, p, training):
        return functional.dropout(x * 2, p, training=training)

    return outer, [call(leaf(10), 0.5, True), call(leaf(10), 0.1, True), call(leaf(10), 0.5, False), call(leaf(4), 1.0, True)]


@program
def seed_set_inside():
    def outer(x):
        torch.manual_seed(7)
        a = torch.rand(2)
        torch.manual_seed(7)
        return x + a, torch.rand(2), torch.initial_seed()

    return outer, [call(normal(2)), call(normal(2))]


@program
def own_generator_argument():
    generator = torch.Generator().manual_seed(3)

    def outer(x):
        noise = torch.randn(x.shape, generator=generator)
        return x + noise, torch.randperm(4, generator=generator)

    return outer, [call(normal(2)), call(normal(2))], generator


@program
def generator_made_inside():
    def outer(x, seed):
        generator = torch.Generator()
        generator.manual_seed(seed)
        return x + torch.rand(2, generator=generator)

    return outer, [call(normal(2), 1), call(normal(2), 2)]


@program
def generator_state_saved_and_restored():
    def outer(x):
        state = torch.get_rng_state()
        first = torch.rand(2)
        torch.set_rng_state(state)
        return x * first, torch.rand(2)

    return outer, [call(normal(2)), call(normal(2))]


@program
def fork_of_the_generator():
    def outer(x):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            inside = torch.rand(2)
        return x + inside, torch.rand(2)

    return outer, [call(normal(2)), call(normal(2))]


@program
def inplace_random_fills():
    def outer(x):
        x.uniform_(-1, 1)
        y = torch.empty(3).normal_(2.0, 0.1)
        z = torch.zeros(3).bernoulli_(0.5)
        return y, z, torch.empty(2).exponential_()

    return outer, [call(count(3)), call(count(2))]


@program
def random_fills_between_bounds_given_by_name():
    def outer(x, bounds):
        return x.uniform_(**bounds), x.new_empty(3).random_(**bounds)

    return outer, [call(count(3), {"from": -2, "to": 5}), call(count(2), {"to": 4, "from": 1})]


@program
def sampling_from_probabilities():
    def outer(weights, temperature):
        probabilities = (weights / temperature).softmax(-1)
        return torch.multinomial(probabilities, 2), torch.bernoulli(probabilities), torch.normal(probabilities, 0.1)

    return outer, [call(normal(4), 1.0), call(normal(2, 4), 0.5)]


@program
def distributions():
    def outer(mean, scale):
        distribution = torch.distributions.Normal(mean, scale)
        sample = distribution.rsample()
        return sample, distribution.log_prob(sample), torch.distributions.Categorical(logits=mean).entropy()

    return outer, [call(leaf(3), positive(3)), call(normal(2), positive(2))]


@program
def gumbel_softmax_and_reparametrisation():
    def outer(logits):
        return functional.gumbel_softmax(logits, tau=0.5), functional.gumbel_softmax(logits, hard=True)

    return outer, [call(leaf(2, 3)), call(normal(1, 4))]


@program
def random_branch():
    def outer(x, p):
        if torch.rand(()) < p:
            return x * 2
        return x

    return outer, [call(count(2), 0.5), call(count(2), 0.5), call(count(2), 0.0), call(count(2), 1.0)]


@program
def random_numbers_around_a_break():
    def outer(x):
        a = torch.rand(2)
        print("between")
        b = torch.rand(2)
        return x + a * b

    return outer, [call(count(2)), call(count(2))]


@program
def random_order_across_a_loop():
    def outer(x, n):
        samples = [torch.rand(2) * i for i in range(n)]
        return x + sum(samples), functional.dropout(x, 0.5)

    return outer, [call(count(2), 2), call(count(2), 3)]


@program
def weight_initialisation():
    def outer(w):
        torch.nn.init.xavier_uniform_(w)
        torch.nn.init.trunc_normal_(w[0], std=0.1)
        torch.nn.init.zeros_(w[1])
        return w.sum()

    return outer, [call(normal(3, 4)), call(normal(2, 2))]


@program
def stochastic_depth_and_noise_schedule():
    def outer(x, layers, drop):
        for i in range(layers):
            keep = 1 - drop * i / layers
            mask = (torch.rand(x.shape[0], 1) < keep).float() / keep
            x = x + mask * torch.tanh(x)
        return x

    return outer, [call(leaf(3, 2), 3, 0.5), call(normal(3, 2), 2, 0.1)]


@program(core=True)
def layers_that_are_never_skipped():
    layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))

    def forward(x, skipped):
        for layer in layers:
            chance = torch.rand([])
            if chance < skipped:
                continue
            x = layer(x).tanh()
        return x, torch.rand(2), torch.rand(()) >= 0

    return forward, [call(normal(3, 2), 0.0), call(normal(3, 2), 0.0)]


@program
def chances_that_decide():
    def forward(x, limit):
        chance = torch.rand([])
        shifted = torch.rand([])
        shifted -= 2
        below = "below" if chance < limit else "above"
        return x + chance, below, shifted < 0 and 1, "odd" if torch.rand(()) >= float("nan") else "even"

    return forward, [call(normal(2), limit) for limit in (1.0, 0.0, -1.0, 0.5, float("nan"))]


@program(raises=IndexError)
def noise_before_a_lookup_that_fails():
    table = torch.nn.Embedding(4, 3)

    def forward(x, index):
        return table(index) + functional.dropout(x, 0.5) + torch.randn(3)

    return forward, [call(normal(3), torch.tensor([1, 2])), call(normal(3), torch.tensor([1, 7])), call(normal(3), torch.tensor([0, 3]))]
