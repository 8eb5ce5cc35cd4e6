"""Programs about tensors: creation, indexing, shapes, views, `out=`, conversions, sizes, less usual kinds."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.conformance.catalogue import call, count, integers, leaf, normal, positive, program


@program(core=True)
def pointwise_chain():
    def outer(x, y):
        return torch.sigmoid(x) * torch.tanh(y) + (x - y).abs().clamp(max=1.0).sqrt()

    return outer, [call(normal(3), normal(3)), call(normal(2, 3), normal(3)), call(leaf(2), leaf(2))]


@program(core=True)
def shape_arithmetic():
    def outer(x, heads):
        batch, length, width = x.shape
        y = x.view(batch, length, heads, width // heads).transpose(1, 2)
        return y.reshape(batch * heads, *y.shape[2:]), y.size(-1) * 2, x.numel() // batch, x.ndim, len(x)

    return outer, [call(normal(2, 3, 4), 2), call(normal(1, 5, 6), 3)]


@program
def size_object():
    def outer(x):
        size = x.size()
        return size, size[1:], size + (1,), size.numel(), torch.Size([1, *size]), size == (2, 3), tuple(size), list(size)

    return outer, [call(normal(2, 3)), call(normal(4))]


@program
def unpacked_shape_in_factories():
    def outer(x):
        return torch.zeros(*x.shape), torch.ones(x.shape), x.new_zeros(x.shape[0], 2), torch.empty(x.size()).fill_(3)

    return outer, [call(normal(2, 3)), call(normal(3))]


@program
def factories():
    def outer(n):
        return (
            torch.arange(n),
            torch.arange(1, n, 0.5),
            torch.linspace(0, 1, n),
            torch.eye(n),
            torch.full((n,), 2),
            torch.tensor([1, n]),
            torch.tensor([[1.5], [n]], dtype=torch.float64),
            torch.zeros(n, dtype=torch.bool),
            torch.tril(torch.ones(n, n)),
        )

    return outer, [call(3), call(4)]


@program
def like_factories():
    def outer(x):
        return torch.zeros_like(x), torch.ones_like(x, dtype=torch.int32), torch.full_like(x, 7), x.new_tensor([1, 2]), x.new_full((2,), 5)

    return outer, [call(normal(2)), call(integers(2, 2)), call(normal(3, 2).t())]


@program
def tensor_from_python_values():
    def outer(x, values, flag):
        return x + torch.tensor(values), torch.tensor(flag), torch.as_tensor(values), torch.tensor(x.shape), torch.stack([torch.tensor(v) for v in values])

    return outer, [call(normal(2), [1.0, 2.0], True), call(normal(2), [3.0, 4.0], False)]


@program
def tensor_from_tensors():
    def outer(x):
        return torch.tensor([x[0].item(), 2.0]), torch.as_tensor(x) is x, torch.asarray(x) * 1

    return outer, [call(count(2)), call(count(3) + 1)]


@program(core=True)
def advanced_indexing_read():
    def outer(x, rows, columns):
        return x[rows], x[rows, columns], x[:, columns], x[[0, 1]], x[..., -1], x[None], x[rows[:, None], columns]

    return outer, [call(count(3, 4), torch.tensor([0, 2]), torch.tensor([1, 3])), call(count(3, 4), torch.tensor([1]), torch.tensor([0]))]


@program(core=True)
def advanced_indexing_write():
    def outer(x, rows, value):
        x[rows] = value
        x[0, 1:3] = -1
        x[:, -1] += 10
        x[rows, 0] *= 2
        return x.sum(0)

    return outer, [call(count(3, 4), torch.tensor([0, 2]), 7.0), call(count(3, 4), torch.tensor([1]), normal(4))]


@program
def boolean_mask_indexing():
    def outer(x):
        positive_ones = x[x > 0]
        x[x < 0] = 0
        return positive_ones, x.sum(), positive_ones.shape[0]

    return outer, [call(normal(6)), call(normal(2, 4)), call(-positive(3))]


@program
def masked_fill_and_select():
    def outer(x, mask):
        return x.masked_fill(mask, float("-inf")).softmax(-1), x.masked_select(mask), torch.where(mask, x, 0.0)

    return outer, [call(normal(2, 3), torch.tensor([True, False, False])), call(normal(3), torch.tensor([False, True, True]))]


@program
def where_with_one_argument():
    def outer(x):
        rows, columns = torch.where(x > 0)
        return rows, columns, torch.nonzero(x), x[rows, columns]

    return outer, [call(count(2, 2) - 1), call(count(2, 3))]


@program
def index_with_slices_of_sizes():
    def outer(x, n):
        return x[:n], x[n:], x[-n:], x[::2], x[1:-1], x[: x.shape[0] // 2], x[n], x[-1:]

    return outer, [call(count(5), 2), call(count(6), 3)]


@program
def index_with_ellipsis_and_none():
    def outer(x):
        return x[..., None], x[:, None, ..., 0], x[..., :1], x[0, ...], x[None, :, None].shape

    return outer, [call(normal(2, 3)), call(normal(2, 3, 4))]


@program
def gather_scatter_index_add():
    def outer(x, index):
        gathered = x.gather(1, index)
        scattered = torch.zeros_like(x).scatter(1, index, gathered * 2)
        added = torch.zeros(4).index_add(0, index[0], torch.ones(index.shape[1]))
        return gathered, scattered, added, x.index_select(0, index[0][:1] % 2), torch.take_along_dim(x, index, 1)

    return outer, [call(leaf(2, 4), torch.tensor([[0, 2], [1, 3]])), call(normal(2, 4), torch.tensor([[3], [0]]))]


@program(core=True)
def einsum():
    def outer(q, k, v):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v), torch.einsum("ii->i", q[0, 0, :, : q.shape[2]])

    return outer, [call(normal(1, 2, 3, 4), normal(1, 2, 3, 4), normal(1, 2, 3, 4)), call(leaf(2, 1, 2, 4), normal(2, 1, 5, 4), leaf(2, 1, 5, 4))]


@program
def reductions():
    def outer(x):
        return x.sum(), x.mean(1, keepdim=True), x.var(0), x.std(unbiased=False), x.amax(-1), x.argmin(0), x.prod(0), x.norm(), x.logsumexp(1)

    return outer, [call(normal(3, 4)), call(leaf(2, 5))]


@program
def cumulative_and_sorting():
    def outer(x):
        values, order = x.sort(dim=-1, descending=True)
        return x.cumsum(0), values, order, x.argsort(), x.topk(2).indices, x.median(), x.flip(0), x.roll(1, 0), x.unique()

    return outer, [call(normal(2, 3)), call(normal(3, 4))]


@program
def comparisons_and_logic():
    def outer(x, y):
        return x.eq(y), torch.isclose(x, y), torch.logical_and(x > 0, y > 0), (x > y).any(), torch.equal(x, y), torch.allclose(x, x)

    x = normal(3)
    return outer, [call(x, normal(3)), call(x, x.clone())]


@program
def split_chunk_unbind_cat_stack():
    def outer(x):
        a, b = x.chunk(2, dim=-1)
        parts = x.split([1, x.shape[-1] - 1], dim=-1)
        return torch.cat([b, a], -1), torch.stack(x.unbind(0), 1), parts, torch.hstack([a, b]), len(x.split(2, 0))

    return outer, [call(normal(2, 4)), call(normal(3, 6))]


@program
def permutes_and_reshapes():
    def outer(x):
        return (
            x.permute(2, 0, 1),
            x.transpose(0, -1).contiguous(),
            x.movedim(0, 2),
            x.flatten(1),
            x.unflatten(2, (2, -1)),
            x.squeeze(),
            x.unsqueeze(-2),
            x.mT,
            x.swapaxes(0, 1),
            x.reshape(-1),
        )

    return outer, [call(normal(2, 3, 4)), call(normal(1, 3, 2))]


@program
def expand_repeat_broadcast():
    def outer(x):
        return x.expand(3, -1), x.repeat(2, 2), x.repeat_interleave(2), torch.broadcast_to(x, (2, x.shape[0])), x.expand_as(x[None])

    return outer, [call(normal(2)), call(normal(3))]


@program
def as_strided_and_unfold():
    def outer(x):
        return x.as_strided((2, 2), (1, 2)), x.unfold(0, 3, 1).sum(-1), x.storage_offset(), x[1:].storage_offset(), x.stride()

    return outer, [call(normal(5)), call(normal(6))]


@program
def out_arguments():
    def outer(x, buffer):
        result = torch.add(x, 1, out=buffer)
        torch.mul(x, 2, out=buffer[0])
        return result is buffer, result

    return outer, [call(count(2), torch.zeros(2, 2)), call(count(3), torch.zeros(2, 3))]


@program
def out_argument_that_is_resized():
    def outer(x):
        empty = torch.empty(0)
        torch.cat([x, x], out=empty)
        values, indices = torch.empty(0), torch.empty(0, dtype=torch.long)
        torch.sort(x, out=(values, indices))
        return empty, values, indices

    return outer, [call(normal(3)), call(normal(2))]


@program(core=True)
def item_and_python_numbers():
    def outer(x):
        n = int(x.sum().item())
        return x * n, float(x[0]), bool(x[0] > 0), x.tolist(), n

    return outer, [call(count(3)), call(count(3) + 1), call(count(3) + 2)]


@program
def size_from_a_value():
    def outer(lengths):
        longest = lengths.max().item()
        mask = torch.arange(longest)[None, :] < lengths[:, None]
        return mask, longest

    return outer, [call(torch.tensor([1, 3])), call(torch.tensor([2, 2])), call(torch.tensor([5, 1]))]


@program
def dynamic_output_shapes():
    def outer(x):
        kept = x.unique()
        return kept * 2, torch.bincount(x), x.nonzero().shape[0], kept.numel()

    return outer, [call(torch.tensor([1, 1, 3])), call(torch.tensor([0, 2, 2, 4]))]


@program
def repeat_interleave_by_a_tensor():
    def outer(x, repeats):
        return x.repeat_interleave(repeats) + 1

    return outer, [call(count(3), torch.tensor([1, 0, 2])), call(count(3), torch.tensor([2, 2, 2]))]


@program
def zero_dimensional_and_empty_tensors():
    def outer(x, empty):
        return x + 1, x.sum(), x.reshape(1), empty.sum(), empty * 2, torch.cat([empty, x.reshape(1)]), empty.numel() == 0

    return outer, [call(torch.tensor(2.0), torch.zeros(0)), call(torch.tensor(3.0), torch.zeros(0))]


@program
def empty_batch():
    def outer(x):
        return functional.softmax(x @ x.t(), -1) if len(x) else x.sum(), x.mean(1)

    return outer, [call(normal(2, 3)), call(normal(0, 3)), call(normal(1, 3))]


@program
def functional_losses():
    def outer(logits, target):
        return (
            functional.cross_entropy(logits, target, label_smoothing=0.1),
            functional.nll_loss(logits.log_softmax(-1), target, reduction="none"),
            functional.mse_loss(logits[:, 0], target.float()),
            functional.binary_cross_entropy_with_logits(logits[:, 0], (target > 1).float()),
        )

    return outer, [call(leaf(3, 4), integers(3, high=4)), call(leaf(5, 4), integers(5, high=4))]


@program
def functional_layers():
    def outer(x, weight):
        y = functional.layer_norm(x, (4,)) + functional.rms_norm(x, (4,))
        z = functional.linear(functional.silu(y), weight)
        return functional.glu(z), functional.pad(z, (1, 2), value=3.0), functional.one_hot(torch.arange(3), 4), functional.normalize(z)

    return outer, [call(leaf(2, 4), leaf(6, 4)), call(normal(3, 4), normal(2, 4))]


@program
def pooling_and_interpolation():
    def outer(x):
        return functional.avg_pool2d(x, 2), functional.adaptive_avg_pool2d(x, 1), functional.interpolate(x, scale_factor=2, mode="nearest"), functional.max_pool2d(x, 2, return_indices=True)

    return outer, [call(leaf(1, 2, 4, 4)), call(normal(2, 1, 6, 4))]


@program
def linear_algebra():
    def outer(a):
        symmetric = a @ a.mT + 3 * torch.eye(a.shape[-1])
        return torch.linalg.inv(symmetric), torch.linalg.det(symmetric), torch.linalg.cholesky(symmetric), torch.linalg.solve(symmetric, a), torch.linalg.vector_norm(a, dim=-1)

    return outer, [call(normal(3, 3)), call(normal(2, 2, 2))]


@program
def matrix_products():
    def outer(a, b, bias):
        return torch.mm(a, b), torch.addmm(bias, a, b, alpha=2.0), torch.bmm(a[None], b[None]), torch.matmul(a, b[:, 0]), torch.outer(bias, bias), torch.dot(bias, bias)

    return outer, [call(leaf(2, 3), leaf(3, 4), leaf(4)), call(normal(5, 3), normal(3, 2), normal(2))]


@program
def complex_tensors():
    def outer(x):
        z = torch.view_as_complex(x.reshape(-1, 2))
        rotated = z * torch.polar(torch.ones(z.shape), torch.arange(float(z.shape[0])))
        return torch.view_as_real(rotated), rotated.abs(), rotated.conj().imag, torch.fft.rfft(x.flatten()).real

    return outer, [call(normal(2, 2)), call(normal(3, 2))]


@program
def sparse_tensors():
    def outer(x, indices):
        sparse = torch.sparse_coo_tensor(indices, x, (3, 3), check_invariants=True)
        return sparse.to_dense() * 2, torch.sparse.mm(sparse, torch.eye(3)), x.sum()

    return outer, [call(normal(2), torch.tensor([[0, 1], [2, 0]])), call(normal(2), torch.tensor([[2, 1], [2, 1]]))]


@program
def sparse_argument():
    def outer(sparse, dense):
        return torch.mm(sparse, dense), sparse.is_sparse, sparse.shape

    return outer, [call(torch.eye(3).to_sparse(), normal(3, 2)), call(torch.eye(2).to_sparse(), normal(2, 2))]


@program(core=True)
def tensor_subclass_with_torch_function():
    class Logged(torch.Tensor):
        log = []

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.log.append(getattr(function, "__name__", str(function)))
            return super().__torch_function__(function, types, args, kwargs or {})

    Logged.log = []

    def outer(x):
        y = x + 1
        return torch.relu(y) * 2, type(y).__name__

    return outer, [call(normal(2).as_subclass(Logged)), call(normal(3))], Logged.log


@program
def duck_tensor_with_torch_function():
    class Quantity:
        def __init__(self, value, unit):
            self.value, self.unit = value, unit

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            values = [arg.value if isinstance(arg, cls) else arg for arg in args]
            return cls(function(*values, **(kwargs or {})), args[0].unit)

    def outer(q, x):
        r = torch.add(q, x)
        return torch.mul(r, 2).value, r.unit

    return outer, [call(Quantity(normal(2), "m"), normal(2)), call(Quantity(normal(2), "s"), 1.0)]


@program
def tensor_subclass_with_attributes():
    class Tagged(torch.Tensor):
        pass

    def make(x, tag):
        tagged = x.as_subclass(Tagged)
        tagged.tag = tag
        return tagged

    def outer(x):
        return x * 2, x.tag, isinstance(x, Tagged), x.as_subclass(torch.Tensor) + 1

    return outer, [call(make(normal(2), "a")), call(make(normal(2), "b"))]


@program
def attribute_on_a_tensor():
    def outer(x):
        y = x * 2
        y.note = "doubled"
        x.seen = getattr(x, "seen", 0) + 1
        return y.note, x.seen, y

    x = normal(2)
    return outer, [call(x), call(x)]


@program
def tensor_metadata_queries():
    def outer(x):
        return (
            x.is_contiguous(),
            x.is_floating_point(),
            x.element_size(),
            x.stride(),
            x.stride(0),
            x.is_leaf,
            x.requires_grad,
            x.layout,
            x.nelement(),
            x.grad_fn is None,
            x.is_sparse,
            x + 0,
        )

    return outer, [call(normal(2, 3)), call(normal(2, 3).t()), call(leaf(2)), call(integers(2))]


@program
def memory_format_and_strides():
    def outer(x):
        y = x.to(memory_format=torch.channels_last)
        return y, y.is_contiguous(memory_format=torch.channels_last), x.contiguous() is x, (y * 2).stride(), y.contiguous()

    return outer, [call(normal(2, 3, 2, 2)), call(normal(1, 2, 3, 3))]


@program
def non_contiguous_inputs():
    def outer(x):
        return x + 1, x.clone(), x.reshape(-1), torch.empty_like(x).stride(), x.sum(0), x * torch.ones(x.shape)

    return outer, [call(normal(2, 3).t()), call(normal(4, 6)[::2, ::3]), call(normal(3, 1).expand(3, 4)), call(normal(2, 3, 4).permute(1, 2, 0))]


@program
def triangular_masks():
    def outer(scores):
        length = scores.shape[-1]
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        return scores.masked_fill(mask, -1e9).softmax(-1), mask.logical_not(), torch.full((length, length), float("-inf")).triu(1)

    return outer, [call(normal(2, 3, 3)), call(normal(4, 4))]


@program
def rotary_embedding():
    def rotate_half(x):
        a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return torch.cat((-b, a), dim=-1)

    def outer(q, base):
        positions = torch.arange(q.shape[-2], dtype=torch.float32)
        frequencies = 1.0 / base ** (torch.arange(0, q.shape[-1], 2).float() / q.shape[-1])
        angles = torch.outer(positions, frequencies)
        table = torch.cat((angles, angles), dim=-1)
        return q * table.cos() + rotate_half(q) * table.sin()

    return outer, [call(normal(2, 3, 4), 10000.0), call(leaf(1, 5, 8), 10000.0), call(normal(2, 3, 4), 500.0)]


@program
def long_chain_of_methods():
    def outer(x):
        return x.float().pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt().mul(x).type_as(x).squeeze(0).neg().exp().log1p()

    return outer, [call(normal(1, 4)), call(leaf(2, 3))]


@program
def in_operator_and_len_of_tensors():
    def outer(x):
        return 2.0 in x, len(x), list(reversed(x)), x.__len__(), x[0] in x

    return outer, [call(count(3)), call(count(2))]


@program
def tensor_iteration_with_zip_and_enumerate():
    def outer(x, y):
        return [(i, a * b) for i, (a, b) in enumerate(zip(x, y))], [row.sum() for row in x.split(1)]

    return outer, [call(normal(2, 2), normal(2, 2)), call(normal(3, 2), normal(2, 2))]


@program
def vmap_friendly_cdist_and_tensordot():
    def outer(a, b):
        return torch.cdist(a, b), torch.tensordot(a, b, dims=([1], [1])), torch.kron(a[:1], b[:1]), torch.trapezoid(a), torch.diff(a)

    return outer, [call(normal(2, 3), normal(4, 3))]


@program
def histogram_and_searching():
    def outer(x, edges):
        return torch.bucketize(x, edges), torch.searchsorted(edges, x), torch.isin(x, edges), x.histc(4, 0, 1)

    return outer, [call(positive(4) - 0.5, torch.tensor([0.2, 0.5, 0.8]))]


@program
def special_values():
    def outer(x):
        y = x / 0
        return y, y.isnan(), torch.isinf(y), torch.nan_to_num(y), y.max(), torch.fmax(y, x), (x - x).log()

    return outer, [call(torch.tensor([-1.0, 0.0, 1.0])), call(torch.tensor([float("nan"), 2.0]))]


@program
def set_printoptions_and_repr_of_a_tensor():
    def outer(x):
        y = x + 1
        return repr(y), str(y.shape), f"{y}", y

    return outer, [call(count(2)), call(count(2, 2))]


@program
def metrics_put_into_one_tensor():
    def outer(scores, labels, weight):
        correct = (scores.argmax(-1) == labels).float()
        rows = [torch.tensor([correct.mean(), scores.max(), weight]), scores.new_tensor([correct.sum(), len(labels)])]
        table = torch.as_tensor([[row.sum(), row.max()] for row in scores])
        counts = torch.tensor([(labels == kind).sum() for kind in range(3)])
        table[0, 0] = 7.0
        return rows, table, counts, torch.LongTensor([labels[0], labels[-1]]), scores

    def scores(rows):
        return torch.arange(3.0 * rows).reshape(rows, 3).sin()

    return outer, [call(scores(2), torch.tensor([0, 2]), 0.5), call(scores(4), torch.tensor([1, 1, 0, 2]), 0.75),
                   call(scores(5), torch.tensor([2, 2, 0, 1, 0]), 1)]


@program
def methods_called_through_the_class():
    def outer(x, n):
        parts = torch.Tensor.split(x, n), torch.Tensor.unflatten(x, 0, (2, 2)), torch.Tensor.norm(x), torch.Tensor.new(x, x.shape)
        return parts[:3], parts[3].shape, torch.Tensor.__rsub__(x, n), torch.Tensor.__len__(x), [*torch.Tensor.__iter__(x)]

    return outer, [call(normal(4), 2), call(leaf(4), 3), call(normal(4, 3), 1)]


@program
def methods_written_out():
    def outer(x, y):
        return x.__iter__().__next__(), x.__len__(), [1, 2].__eq__([1, len(x)]), (1, 2).__lt__((len(x), 0)), x.new(x.size()).shape

    return outer, [call(normal(2), normal(3)), call(normal(3, 2), normal(1))]
