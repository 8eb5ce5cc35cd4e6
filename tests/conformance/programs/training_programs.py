"""Programs of the kind people write: small training steps of many sorts, with optimizers, schedules and tricks inside."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional

from tests.conformance.catalogue import call, integers, leaf, normal, positive, program


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between."""
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@program(core=True)
def supervised_step():
    model = mlp(4, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step, [call(normal(5, 4), integers(5, high=3)) for _ in range(3)], model


@program
def training_loop_over_batches():
    model = mlp(3, 5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)

    def train(batches, epochs):
        history = []
        for epoch in range(epochs):
            total = 0.0
            for x, y in batches:
                optimizer.zero_grad(set_to_none=True)
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                total += loss.item()
            history.append((epoch, total / len(batches)))
        return history

    return train, [call([(normal(4, 3), normal(4, 1)), (normal(2, 3), normal(2, 1))], 2)], model


@program
def gan_step():
    generator, critic = mlp(2, 6, 3), mlp(3, 6, 1)
    for_generator = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999))
    for_critic = torch.optim.Adam(critic.parameters(), lr=0.01, betas=(0.5, 0.999))

    def step(real):
        ones, zeros = torch.ones(real.shape[0], 1), torch.zeros(real.shape[0], 1)
        fake = generator(torch.randn(real.shape[0], 2))
        for_critic.zero_grad()
        critic_loss = functional.binary_cross_entropy_with_logits(critic(real), ones)
        critic_loss = critic_loss + functional.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)
        critic_loss.backward()
        for_critic.step()
        for_generator.zero_grad()
        generator_loss = functional.binary_cross_entropy_with_logits(critic(fake), ones)
        generator_loss.backward()
        for_generator.step()
        return critic_loss.detach(), generator_loss.detach()

    return step, [call(normal(4, 3)) for _ in range(2)], nn.ModuleList([generator, critic])


@program
def wasserstein_critic_with_gradient_penalty():
    critic = mlp(3, 5, 1)

    def loss(real, fake):
        mix = torch.rand(real.shape[0], 1)
        between = (mix * real + (1 - mix) * fake).requires_grad_(True)
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
        return critic(fake).mean() - critic(real).mean() + 10 * penalty

    return loss, [call(normal(4, 3), normal(4, 3)), call(normal(4, 3), normal(4, 3))], critic


@program(core=True)
def variational_autoencoder():
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.mean, self.spread, self.decoder = mlp(6, 8, 8), nn.Linear(8, 2), nn.Linear(8, 2), mlp(2, 8, 6)

        def reparameterise(self, mean, log_variance):
            if self.training:
                return mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
            return mean

        def forward(self, x):
            hidden = functional.relu(self.encoder(x))
            mean, log_variance = self.mean(hidden), self.spread(hidden)
            rebuilt = torch.sigmoid(self.decoder(self.reparameterise(mean, log_variance)))
            divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
            return functional.binary_cross_entropy(rebuilt, x, reduction="sum") + divergence

    model = Autoencoder()
    return model, [call(positive(3, 6) - 0.5), call(positive(2, 6) - 0.5)], model


@program
def vector_quantised_codes():
    class Quantiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.codes = nn.Embedding(5, 3)

        def forward(self, z):
            distance = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.codes.weight.t() + self.codes.weight.pow(2).sum(1)
            index = distance.argmin(1)
            code = self.codes(index)
            loss = functional.mse_loss(code, z.detach()) + 0.25 * functional.mse_loss(code.detach(), z)
            return z + (code - z).detach(), loss, index

    model = Quantiser()
    return model, [call(leaf(4, 3)), call(leaf(6, 3))], model


@program
def policy_gradient_step():
    policy = mlp(3, 8, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)

    def step(states, actions, rewards):
        returns, running = [], 0.0
        for reward in reversed(rewards):
            running = reward + 0.9 * running
            returns.insert(0, running)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        chances = torch.distributions.Categorical(logits=policy(states))
        loss = -(chances.log_prob(actions) * returns).mean() - 0.01 * chances.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, [call(normal(3, 3), integers(3, high=2), [1.0, 0.0, 2.0]), call(normal(3, 3), integers(3, high=2), [0.5, 1.0, -1.0])
                  ], policy


@program
def proximal_policy_loss():
    actor, critic = mlp(3, 6, 2), mlp(3, 6, 1)

    def loss(states, actions, before, advantages, returns):
        chances = functional.log_softmax(actor(states), -1).gather(1, actions[:, None]).squeeze(1)
        ratio = (chances - before).exp()
        clipped = torch.clamp(ratio, 0.8, 1.2) * advantages
        value = critic(states).squeeze(-1)
        return -torch.min(ratio * advantages, clipped).mean() + 0.5 * functional.smooth_l1_loss(value, returns)

    return loss, [call(normal(4, 3), integers(4, high=2), -positive(4), normal(4), normal(4))], nn.ModuleList([actor, critic])


@program
def q_learning_step():
    online = mlp(3, 6, 2)
    target = copy.deepcopy(online)

    def loss(state, action, reward, following, done):
        chosen = online(state).gather(1, action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = target(following).max(1)[0]
            wanted = reward + 0.99 * best * (1 - done.float())
        return functional.huber_loss(chosen, wanted)

    return loss, [call(normal(4, 3), integers(4, high=2), normal(4), normal(4, 3), normal(4) > 0)], nn.ModuleList([online, target])


@program
def actor_critic_soft_update():
    online, target = mlp(2, 3, 1), mlp(2, 3, 1)

    def update(tau):
        for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
            mine.data.copy_(tau * theirs.data + (1.0 - tau) * mine.data)

    return update, [call(0.1), call(0.1)], nn.ModuleList([online, target])


@program
def ema_teacher():
    student, teacher = (nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)) for _ in range(2))

    @torch.no_grad()
    def update(decay=0.9):
        for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
            mine.mul_(decay).add_(theirs, alpha=1 - decay)
        for mine, theirs in zip(teacher.buffers(), student.buffers(), strict=True):
            mine.copy_(theirs)

    def step(x):
        with torch.no_grad():
            wanted = teacher(x)
        loss = functional.mse_loss(student(x + 0.1), wanted)
        loss.backward()
        update()
        return loss.detach()

    return step, [call(normal(4, 3)), call(normal(4, 3))], nn.ModuleList([student, teacher])


@program
def momentum_contrast_queue():
    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", functional.normalize(normal(6, 3), dim=1))
            self.register_buffer("position", torch.zeros(1, dtype=torch.long))
            self.encoder = nn.Linear(4, 3)

        @torch.no_grad()
        def enqueue(self, keys):
            start = int(self.position)
            self.keys[start : start + keys.shape[0]] = keys
            self.position[0] = (start + keys.shape[0]) % self.keys.shape[0]

        def forward(self, x, other):
            query = functional.normalize(self.encoder(x), dim=1)
            key = functional.normalize(self.encoder(other), dim=1).detach()
            logits = torch.cat([(query * key).sum(1, keepdim=True), query @ self.keys.clone().t()], 1) / 0.07
            self.enqueue(key)
            return functional.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))

    model = Queue()
    return model, [call(normal(2, 4), normal(2, 4)) for _ in range(3)], model


@program(core=True)
def contrastive_loss():
    encoder = mlp(4, 6, 3)

    def loss(one, two, temperature=0.5):
        z = functional.normalize(torch.cat([encoder(one), encoder(two)]), dim=-1)
        count = one.shape[0]
        scores = z @ z.t() / temperature
        scores = scores.masked_fill(torch.eye(2 * count, dtype=torch.bool), float("-inf"))
        partners = torch.cat([torch.arange(count, 2 * count), torch.arange(count)])
        return functional.cross_entropy(scores, partners)

    return loss, [call(normal(3, 4), normal(3, 4)), call(normal(2, 4), normal(2, 4), 0.1)], encoder


@program
def clip_style_loss():
    images, texts = nn.Linear(5, 3), nn.Linear(4, 3)
    scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def loss(image, text):
        one, two = functional.normalize(images(image), dim=-1), functional.normalize(texts(text), dim=-1)
        logits = scale.exp().clamp(max=100) * one @ two.t()
        labels = torch.arange(len(logits))
        return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.t(), labels)) / 2

    return loss, [call(normal(3, 5), normal(3, 4))], nn.ModuleList([images, texts])


@program
def triplet_with_hard_negatives():
    encoder = nn.Linear(4, 3)

    def loss(x, labels, margin=0.2):
        z = functional.normalize(encoder(x), dim=1)
        distance = torch.cdist(z, z)
        same = labels[:, None] == labels[None]
        positive_distance = (distance * same).max(1).values
        negative = distance.masked_fill(same, 1e6).min(1).values
        return functional.relu(positive_distance - negative + margin).mean()

    return loss, [call(normal(4, 4), torch.tensor([0, 0, 1, 1]))], encoder


@program
def barlow_twins_loss():
    encoder = nn.Linear(4, 3, bias=False)

    def off_diagonal(matrix):
        n, m = matrix.shape
        assert n == m
        return matrix.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()

    def loss(one, two):
        a, b = encoder(one), encoder(two)
        a, b = (a - a.mean(0)) / a.std(0), (b - b.mean(0)) / b.std(0)
        correlation = (a.T @ b).div_(one.shape[0])
        return torch.diagonal(correlation).add_(-1).pow_(2).sum() + 0.01 * off_diagonal(correlation).pow_(2).sum()

    return loss, [call(normal(5, 4), normal(5, 4))], encoder


@program
def knowledge_distillation():
    student, teacher = mlp(4, 5, 3), mlp(4, 9, 3).eval()

    def loss(x, y, temperature=2.0, share=0.7):
        with torch.no_grad():
            wanted = functional.softmax(teacher(x) / temperature, -1)
        logits = student(x)
        soft = functional.kl_div(functional.log_softmax(logits / temperature, -1), wanted, reduction="batchmean")
        return share * temperature**2 * soft + (1 - share) * functional.cross_entropy(logits, y, label_smoothing=0.1)

    return loss, [call(normal(4, 4), integers(4, high=3)), call(normal(2, 4), integers(2, high=3), share=0.5)], student


@program
def mixup_and_cutmix():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))

    def mixup(x, y, share):
        order = torch.randperm(x.shape[0])
        logits = model(share * x + (1 - share) * x[order])
        return share * functional.cross_entropy(logits, y) + (1 - share) * functional.cross_entropy(logits, y[order])

    def cutmix(x, y):
        x = x.clone()
        x[:, :, 1:3, 1:3] = x.flip(0)[:, :, 1:3, 1:3]
        return functional.cross_entropy(model(x), y) * 0.75 + functional.cross_entropy(model(x), y.flip(0)) * 0.25

    def outer(x, y, share):
        return mixup(x, y, share) + cutmix(x, y)

    return outer, [call(normal(2, 1, 4, 4), integers(2, high=3), 0.3), call(normal(2, 1, 4, 4), integers(2, high=3), 0.3)], model


@program
def diffusion_training_step():
    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.time, self.body = mlp(4, 4), mlp(7, 8, 3)
            betas = torch.linspace(1e-4, 0.02, 10)
            self.register_buffer("kept", torch.cumprod(1 - betas, 0))

        def embed(self, t):
            frequencies = torch.exp(-math.log(10000) * torch.arange(2) / 2)
            angles = t[:, None].float() * frequencies[None]
            return torch.cat([angles.sin(), angles.cos()], -1)

        def forward(self, x):
            t = torch.randint(0, 10, (x.shape[0],))
            noise = torch.randn_like(x)
            kept = self.kept[t][:, None]
            noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
            return functional.mse_loss(self.body(torch.cat([noisy, self.time(self.embed(t))], -1)), noise)

    model = Denoiser()
    return model, [call(normal(4, 3)), call(normal(2, 3))], model


@program
def diffusion_sampling_loop():
    model = mlp(4, 6, 3)
    betas = torch.linspace(0.01, 0.2, 4)

    @torch.no_grad()
    def sample(shape):
        alphas = 1 - betas
        kept = alphas.cumprod(0)
        x = torch.randn(shape)
        for step in reversed(range(len(betas))):
            time = torch.full((shape[0], 1), step / len(betas))
            noise = model(torch.cat([x, time], -1))
            x = (x - betas[step] / (1 - kept[step]).sqrt() * noise) / alphas[step].sqrt()
            if step > 0:
                x = x + betas[step].sqrt() * torch.randn_like(x)
        return x

    return sample, [call((2, 3)), call((1, 3))], model


@program
def score_matching_with_a_gradient():
    energy = mlp(2, 6, 1)

    def loss(x):
        x = x.detach().clone().requires_grad_(True)
        score = -torch.autograd.grad(energy(x).sum(), x, create_graph=True)[0]
        return 0.5 * score.pow(2).sum(-1).mean()

    return loss, [call(normal(3, 2)), call(normal(3, 2))], energy


@program
def mixture_of_experts():
    class Experts(nn.Module):
        def __init__(self, count=3, chosen=2):
            super().__init__()
            self.gate, self.chosen = nn.Linear(4, count), chosen
            self.experts = nn.ModuleList(mlp(4, 6, 4) for _ in range(count))

        def forward(self, x):
            weights, index = self.gate(x).topk(self.chosen, dim=-1)
            weights = weights.softmax(-1)
            output = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows, places = torch.where(index == number)
                if rows.numel():
                    output[rows] += weights[rows, places, None] * expert(x[rows])
            share = self.gate(x).softmax(-1).mean(0)
            return output, (share * share.log()).sum()

    model = Experts()
    return model, [call(normal(4, 4)), call(leaf(3, 4))], model


@program
def mixture_of_experts_dense():
    gate = nn.Linear(4, 3)
    weight = nn.Parameter(normal(3, 4, 4))

    def outer(x):
        scores = gate(x).softmax(-1)
        top, index = scores.topk(2, -1)
        kept = torch.zeros_like(scores).scatter(-1, index, top)
        return torch.einsum("be,eio,bi->bo", kept / kept.sum(-1, keepdim=True), weight, x)

    return outer, [call(normal(5, 4)), call(leaf(2, 4))], gate


@program
def sequence_to_sequence_with_attention():
    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.encoder = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True, bidirectional=True)
            self.bridge, self.cell = nn.Linear(10, 5), nn.LSTMCell(4 + 5, 5)
            self.keys, self.head = nn.Linear(10, 5), nn.Linear(10, 9)

        def forward(self, source, target):
            memory, (hidden, _) = self.encoder(self.words(source))
            memory = self.keys(memory)
            state = torch.tanh(self.bridge(torch.cat([hidden[0], hidden[1]], -1)))
            carry, context, logits = torch.zeros_like(state), torch.zeros_like(state), []
            for step in range(target.shape[1]):
                inputs = torch.cat([self.words(target[:, step]), context], -1)
                state, carry = self.cell(inputs, (state, carry))
                scores = torch.bmm(memory, state.unsqueeze(2)).squeeze(2)
                context = torch.bmm(scores.softmax(1).unsqueeze(1), memory).squeeze(1)
                logits.append(self.head(torch.cat([state, context], -1)))
            return torch.stack(logits, 1)

    model = Translator()
    return model, [call(integers(2, 4, high=9), integers(2, 3, high=9)), call(integers(2, 4, high=9), integers(2, 3, high=9))], model


@program
def language_model_with_lstm_and_carried_state():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn, self.head = nn.Embedding(8, 4), nn.LSTM(4, 4, 2, dropout=0.0), nn.Linear(4, 8)
            self.head.weight = self.embed.weight

        def forward(self, tokens, state=None):
            output, state = self.rnn(self.embed(tokens), state)
            return self.head(output), tuple(part.detach() for part in state)

    model = Model()
    state = None

    def step(tokens):
        nonlocal state
        logits, state = model(tokens[:-1], state)
        return functional.cross_entropy(logits.reshape(-1, 8), tokens[1:].reshape(-1))

    return step, [call(integers(5, 2, high=8)) for _ in range(3)], model


@program
def packed_sequences_through_a_gru():
    rnn, head = nn.GRU(3, 4, batch_first=True, bidirectional=True), nn.Linear(8, 2)

    def outer(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x * 2, lengths, batch_first=True, enforce_sorted=False)
        output, hidden = rnn(packed)
        output, sizes = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
        return head(output).relu(), hidden, sizes, packed.data.sum()

    return outer, [call(normal(3, 4, 3), torch.tensor([4, 2, 3])), call(leaf(2, 3, 3), torch.tensor([3, 1]))], nn.ModuleList([rnn, head])


@program
def rnn_cells_by_hand():
    cell, gru = nn.RNNCell(3, 4), nn.GRUCell(4, 4)

    def outer(x):
        one, two = torch.zeros(x.shape[1], 4), torch.zeros(x.shape[1], 4)
        outputs = []
        for row in x:
            one = cell(row, one)
            two = gru(one, two)
            outputs.append(two)
        return torch.stack(outputs), two

    return outer, [call(normal(3, 2, 3)), call(leaf(2, 2, 3))], nn.ModuleList([cell, gru])


@program
def character_rnn_unbatched():
    rnn = nn.RNN(3, 4, num_layers=2, nonlinearity="relu")

    def outer(x, hidden):
        output, hidden = rnn(x, hidden)
        return output.sum(0) * 2, hidden + 1

    return outer, [call(normal(5, 3), normal(2, 4)), call(leaf(4, 3), leaf(2, 4))], rnn


@program
def beam_search_step():
    head = nn.Linear(3, 5)

    def step(hidden, scores, beams):
        chances = head(hidden).log_softmax(-1)
        total = (scores[:, None] + chances).view(-1)
        best, index = total.topk(beams)
        parents = torch.div(index, chances.shape[-1], rounding_mode="floor")
        return best, index % chances.shape[-1], hidden[parents]

    return step, [call(normal(2, 3), normal(2), 2), call(normal(3, 3), normal(3), 3)], head


@program
def greedy_decoding_until_the_end():
    embed, head = nn.Embedding(5, 4), nn.Linear(4, 5)

    @torch.no_grad()
    def decode(start, limit):
        tokens = [start]
        state = torch.zeros(4)
        for _ in range(limit):
            state = torch.tanh(state + embed(tokens[-1]))
            token = head(state).argmax(-1)
            tokens.append(token)
            if token.item() == 0:
                break
        return torch.stack(tokens)

    return decode, [call(torch.tensor(1), 4), call(torch.tensor(3), 4)], head


@program
def nucleus_sampling():
    def sample(logits, top_p, top_k):
        kept = logits.topk(top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < kept, float("-inf"))
        ordered, index = logits.softmax(-1).sort(descending=True)
        remove = ordered.cumsum(-1) - ordered > top_p
        chances = ordered.masked_fill(remove, 0.0)
        chances = torch.zeros_like(chances).scatter(-1, index, chances / chances.sum(-1, keepdim=True))
        return torch.multinomial(chances, 1), chances

    return sample, [call(normal(2, 6), 0.9, 4), call(normal(3, 6), 0.5, 2)]


@program
def transformer_encoder_classifier():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
            self.embed, self.encoder, self.head = nn.Embedding(9, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 2)

        def forward(self, tokens):
            padding = tokens == 0
            hidden = self.encoder(self.embed(tokens), src_key_padding_mask=padding)
            weight = (~padding).float().unsqueeze(-1)
            return self.head((hidden * weight).sum(1) / weight.sum(1).clamp(min=1))

    model = Classifier()
    return model, [call(torch.tensor([[1, 2, 3], [4, 5, 0]])), call(torch.tensor([[1, 0, 0], [4, 5, 6]]))], model


@program
def whole_transformer():
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def outer(source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return model(source, target, tgt_mask=mask)[..., :3].sum(-1)

    return outer, [call(normal(2, 3, 8), normal(2, 4, 8)), call(normal(2, 3, 8), leaf(2, 4, 8))], model


@program
def multihead_attention_with_masks():
    attention = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)

    def outer(x, padding, causal):
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1) if causal else None
        output, weights = attention(x, x, x, key_padding_mask=padding, attn_mask=mask, average_attn_weights=not causal)
        return output, weights

    return outer, [call(leaf(2, 3, 8), torch.tensor([[False, False, True], [False, False, False]]), False),
                   call(normal(2, 3, 8), None, True)], attention


@program
def gradient_scaler_step():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step, [call(normal(4, 3), normal(4, 1)) for _ in range(2)], model


@program
def gradient_accumulation_with_no_sync_flag():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"micro": 0}

    def step(x, every):
        loss = model(x).pow(2).mean() / every
        loss.backward()
        state["micro"] += 1
        if state["micro"] % every == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step, [call(normal(3, 2), 2) for _ in range(4)], (model, state)


@program
def sgd_by_hand():
    weight, bias = leaf(3), leaf(1)

    def step(x, y, rate):
        loss = ((x @ weight + bias - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in (weight, bias):
                parameter -= rate * parameter.grad
                parameter.grad.zero_()
        return loss.item()

    return step, [call(normal(4, 3), normal(4), 0.1) for _ in range(3)], (weight, bias)


@program
def sgd_by_hand_through_data():
    weight = leaf(3)

    def step(x, y):
        weight.grad = None
        loss = ((x @ weight - y) ** 2).mean()
        loss.backward()
        weight.data -= 0.1 * weight.grad.data
        return loss.detach()

    return step, [call(normal(4, 3), normal(4)) for _ in range(3)], weight


@program
def optimizer_written_by_the_user():
    class Lion(torch.optim.Optimizer):
        def __init__(self, parameters, lr=0.01):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    state = self.state[parameter]
                    if not state:
                        state["average"] = torch.zeros_like(parameter)
                    update = (state["average"] * 0.9 + parameter.grad * 0.1).sign()
                    parameter.add_(update, alpha=-group["lr"])
                    state["average"].mul_(0.99).add_(parameter.grad, alpha=0.01)

    model = nn.Linear(3, 2)
    optimizer = Lion(model.parameters())

    def step(x):
        optimizer.zero_grad()
        model(x).pow(2).sum().backward()
        optimizer.step()

    return step, [call(normal(2, 3)) for _ in range(3)], model


@program
def schedules_of_many_kinds():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [2])

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return optimizer.param_groups[0]["lr"]

    return step, [call(normal(3, 2)) for _ in range(4)], model


@program
def learning_rate_by_hand():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def step(x, iteration):
        rate = 0.5 * (1 + math.cos(math.pi * iteration / 10))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        return rate

    return step, [call(normal(3, 2), number) for number in range(3)], model


@program
def sharpness_aware_minimisation():
    model = mlp(2, 4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y, radius=0.05):
        functional.mse_loss(model(x), y).backward()
        norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
        with torch.no_grad():
            moves = []
            for parameter in model.parameters():
                move = parameter.grad * (radius / (norm + 1e-12))
                parameter.add_(move)
                moves.append(move)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, [call(normal(3, 2), normal(3, 1)) for _ in range(2)], model


@program
def lbfgs_closure():
    weight = leaf(2)
    optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=3)

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = ((x @ weight - y) ** 2).mean()
            loss.backward()
            return loss

        return optimizer.step(closure).item()

    return step, [call(normal(4, 2), normal(4))], weight


@program
def adversarial_perturbation():
    model = mlp(3, 4, 2)

    def attack(x, y, epsilon):
        x = x.clone().detach().requires_grad_(True)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return (x + epsilon * x.grad.sign()).clamp(-1, 1).detach()

    return attack, [call(normal(2, 3), integers(2, high=2), 0.1), call(normal(2, 3), integers(2, high=2), 0.1)], model


@program
def projected_gradient_attack():
    model = mlp(3, 4, 2)

    def attack(x, y, steps=2):
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(steps):
            functional.cross_entropy(model(x + delta), y).backward()
            delta.data = (delta + 0.1 * delta.grad.detach().sign()).clamp(-0.3, 0.3)
            delta.grad.zero_()
        return delta.detach()

    return attack, [call(normal(2, 3), integers(2, high=2))], model


@program
def meta_learning_inner_step():
    weight = leaf(3, 1)

    def outer(x, y, held_x, held_y):
        loss = functional.mse_loss(x @ weight, y)
        (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
        fast = weight - 0.1 * slope
        return functional.mse_loss(held_x @ fast, held_y)

    return outer, [call(normal(4, 3), normal(4, 1), normal(4, 3), normal(4, 1))], weight


@program
def style_transfer_gram_loss():
    features = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(2, 3, 3, padding=1))

    def gram(x):
        batch, channels, height, width = x.size()
        flat = x.view(batch * channels, height * width)
        return torch.mm(flat, flat.t()).div(batch * channels * height * width)

    def loss(x, style):
        total = 0
        for layer in features:
            x, style = layer(x), layer(style)
            if isinstance(layer, nn.Conv2d):
                total = total + functional.mse_loss(gram(x), gram(style.detach()))
        return total

    return loss, [call(leaf(1, 1, 4, 4), normal(1, 1, 4, 4))], features


@program
def graph_convolution():
    class Convolution(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x, edges):
            source, target = edges
            degree = torch.zeros(x.shape[0]).index_add_(0, target, torch.ones(target.shape[0])).clamp(min=1)
            messages = self.lin(x)[source] / degree[target].sqrt().unsqueeze(-1)
            return torch.zeros_like(x).index_add(0, target, messages).relu()

    model = Convolution()
    return model, [call(leaf(4, 3), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 1]]))], model


@program
def detection_style_loss():
    def box_overlap(one, two):
        low = torch.max(one[:, None, :2], two[None, :, :2])
        high = torch.min(one[:, None, 2:], two[None, :, 2:])
        shared = (high - low).clamp(min=0).prod(-1)
        area = lambda box: (box[:, 2:] - box[:, :2]).prod(-1)
        return shared / (area(one)[:, None] + area(two)[None] - shared)

    def focal(logits, wanted, gamma=2.0):
        chance = torch.sigmoid(logits)
        plain = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        matched = chance * wanted + (1 - chance) * (1 - wanted)
        return (plain * (1 - matched) ** gamma).mean()

    def outer(boxes, truth, logits):
        overlap = box_overlap(boxes, truth)
        best, match = overlap.max(1)
        wanted = (best > 0.3).float()
        return focal(logits, wanted) + (functional.smooth_l1_loss(boxes, truth[match], reduction="none").sum(1) * wanted).mean()

    base = positive(3, 2)
    return outer, [call(torch.cat([base, base + 1], 1).requires_grad_(), torch.cat([base[:2], base[:2] + 1.2], 1), leaf(3))]


@program
def connectionist_temporal_classification():
    head = nn.Linear(3, 4)

    def loss(x, targets, lengths, target_lengths):
        return functional.ctc_loss(head(x).log_softmax(-1), targets, lengths, target_lengths)

    return loss, [call(normal(6, 2, 3), integers(2, 2, low=1, high=4), torch.tensor([6, 5]), torch.tensor([2, 1]))], head


@program
def evaluation_loop_with_metrics():
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 3))

    @torch.no_grad()
    def evaluate(batches):
        model.eval()
        correct = total = 0
        confusion = torch.zeros(3, 3)
        for x, y in batches:
            guess = model(x).argmax(1)
            correct += (guess == y).sum().item()
            total += y.numel()
            confusion.index_put_((y, guess), torch.ones(len(y)), accumulate=True)
        model.train()
        return correct / total, confusion

    return evaluate, [call([(normal(4, 3), integers(4, high=3)), (normal(2, 3), integers(2, high=3))])], model


@program
def early_stopping_state():
    class Stopper:
        def __init__(self, patience):
            self.best, self.bad, self.patience = float("inf"), 0, patience

        def __call__(self, loss):
            if loss < self.best:
                self.best, self.bad = loss, 0
            else:
                self.bad += 1
            return self.bad >= self.patience

    stopper, model = Stopper(1), nn.Linear(2, 1)

    def check(x):
        return stopper(model(x).pow(2).mean().item())

    return check, [call(normal(3, 2)), call(normal(3, 2)), call(normal(3, 2))], stopper


@program
def freezing_and_layerwise_rates():
    model = mlp(3, 4, 2)

    def step(x, frozen):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not (frozen and name.startswith("0")))
        loss = model(x).pow(2).mean()
        loss.backward()
        return [parameter.grad is None for parameter in model.parameters()]

    return step, [call(normal(2, 3), True), call(normal(2, 3), False)], model


@program
def stochastic_depth_and_layer_scale():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.scale = nn.Linear(4, 4), nn.Parameter(torch.full((4,), 0.1))

        def forward(self, x, drop=0.3):
            branch = self.scale * self.lin(x)
            if self.training and drop > 0:
                keep = torch.rand(x.shape[0], 1).add_(1 - drop).floor_()
                branch = branch.div(1 - drop) * keep
            return x + branch

    model = nn.Sequential(Block(), nn.GELU(), Block())
    return model, [call(leaf(3, 4)), call(normal(3, 4))], model


@program
def low_rank_adapters():
    class Adapted(nn.Module):
        def __init__(self, base, rank=2):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
            self.merged = False

        def forward(self, x):
            return self.base(x) if self.merged else self.base(x) + self.up(self.down(x)) * 0.5

    model = nn.Sequential(Adapted(nn.Linear(3, 4)), nn.ReLU(), Adapted(nn.Linear(4, 2)))
    return model, [call(normal(2, 3)), call(leaf(2, 3))], model


@program
def rotary_attention_with_a_cache():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
            angles = torch.outer(torch.arange(8.0), 10000 ** (-torch.arange(0, 4, 2) / 4))
            self.register_buffer("cos", torch.cat([angles, angles], -1).cos(), persistent=False)
            self.register_buffer("sin", torch.cat([angles, angles], -1).sin(), persistent=False)

        def rotate(self, x, start):
            first, second = x.chunk(2, -1)
            cos, sin = self.cos[start : start + x.shape[-2]], self.sin[start : start + x.shape[-2]]
            return x * cos + torch.cat([-second, first], -1) * sin

        def forward(self, x, cache=None):
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
            start = 0 if cache is None else cache[0].shape[-2]
            q, k = self.rotate(q, start), self.rotate(k, start)
            if cache is not None:
                k, v = torch.cat([cache[0], k], -2), torch.cat([cache[1], v], -2)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
            return self.out(y.transpose(1, 2).reshape(x.shape)), (k, v)

    model = Attention()

    def generate(x, token):
        y, cache = model(x)
        z, cache = model(token, cache)
        return y, z, cache

    return generate, [call(leaf(1, 3, 8), normal(1, 1, 8)), call(normal(2, 2, 8), normal(2, 1, 8))], model


@program
def neural_field_with_fourier_features():
    frequencies, net = normal(2, 4), mlp(8, 8, 3)

    def render(coordinates, target):
        angles = 2 * math.pi * coordinates @ frequencies
        colour = net(torch.cat([angles.sin(), angles.cos()], -1)).sigmoid()
        loss = functional.mse_loss(colour, target)
        return loss, -10 * torch.log10(loss.detach())

    return render, [call(positive(6, 2), positive(6, 3) - 0.5)], net


@program
def physics_informed_residual():
    net = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1))

    def residual(x):
        x = x.clone().requires_grad_()
        u = net(x)
        (slope,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
        (curve,) = torch.autograd.grad(slope, x, torch.ones_like(slope), create_graph=True)
        return ((curve + u) ** 2).mean()

    return residual, [call(normal(4, 1)), call(normal(4, 1))], net


@program
def hard_gumbel_routing():
    gate, values = nn.Linear(3, 4), nn.Parameter(normal(4, 2))

    def outer(x, temperature):
        choice = functional.gumbel_softmax(gate(x), tau=temperature, hard=True)
        return choice @ values

    return outer, [call(normal(3, 3), 1.0), call(leaf(3, 3), 1.0)], gate


@program
def unet_with_skip_connections():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList([nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 4, 3, padding=1)])
            self.up = nn.ModuleList([nn.ConvTranspose2d(4, 2, 2, stride=2), nn.Conv2d(4, 1, 3, padding=1)])
            self.norm = nn.GroupNorm(2, 4)

        def forward(self, x):
            skips = []
            for layer in self.down:
                x = functional.silu(layer(x))
                skips.append(x)
                x = functional.max_pool2d(x, 2) if layer is not self.down[-1] else self.norm(x)
            x = self.up[0](x)
            return self.up[1](torch.cat([x, skips[0]], 1))

    model = Net()
    return model, [call(normal(1, 1, 4, 4)), call(leaf(1, 1, 8, 8))], model


@program
def class_weights_and_ignored_labels():
    head = nn.Linear(3, 4)
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0])

    def loss(x, y):
        logits = head(x)
        mask = y != -100
        plain = functional.cross_entropy(logits, y, weight=weight, ignore_index=-100)
        by_hand = functional.nll_loss(logits.log_softmax(-1)[mask], y[mask])
        return plain + by_hand

    return loss, [call(normal(4, 3), torch.tensor([0, -100, 2, 3])), call(normal(4, 3), torch.tensor([1, 1, -100, -100]))], head


@program
def logging_inside_the_loss():
    model, history = nn.Linear(2, 1), []

    def step(x, verbose):
        loss = model(x).pow(2).mean()
        if verbose:
            print(f"loss {loss.item():.4f}")
        history.append(loss.detach())
        return loss * 2

    return step, [call(normal(3, 2), True), call(normal(3, 2), False), call(normal(3, 2), True)], history


@program
def memory_bank_written_then_compared_with():
    bank, filled = torch.zeros(4, 2), torch.zeros(1, dtype=torch.int64)

    def f(x, places):
        bank[places] = x.detach()
        filled[0] = (filled[0] + len(places)) % len(bank)
        return (x @ bank.t()).logsumexp(-1)

    return f, [call(normal(2, 2).requires_grad_(), torch.tensor(at)) for at in ([0, 1], [2, 3], [3, 0])], (bank, filled)


@program
def networks_that_take_turns_to_require_gradients():
    generator, critic = mlp(3, 4, 3), mlp(3, 4, 1)

    def toggle(net, flag):
        for parameter in net.parameters():
            parameter.requires_grad = flag

    def step(x):
        toggle(critic, False)
        loss = -critic(generator(x)).mean()
        frozen = [name for name, parameter in critic.named_parameters() if not parameter.requires_grad]
        loss.backward()
        toggle(critic, True)
        toggle(generator, False)
        (critic(generator(x)) - critic(x)).mean().backward()
        toggle(generator, True)
        return loss.detach(), frozen

    return step, [call(normal(2, 3)) for _ in range(3)], (generator, critic)


@program
def adapters_are_chosen_by_their_names():
    layers = nn.ModuleDict({"first": nn.Linear(3, 3), "second": nn.Linear(3, 3)})

    def chosen(x, active):
        for name, layer in layers.items():
            layer.requires_grad_(name == active)
        trained = [name for name, parameter in layers.named_parameters() if parameter.requires_grad]
        return layers[active](x), trained

    return chosen, [call(normal(2, 3), name) for name in ("first", "second", "second", "first")], layers
