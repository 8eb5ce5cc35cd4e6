"""Programs that change tensors in place, look at them through views, and return what shares storage."""

from __future__ import annotations

import torch

from tests.conformance.catalogue import call, count, leaf, normal, program, under


@program(core=True)
def input_changed_in_place():
    def outer(x):
        x.add_(1)
        x.mul_(2)
        return x.sum()

    return outer, [call(count(3)), call(count(2, 2))]


@program(core=True)
def input_returned():
    def outer(x, y):
        return x, y, x + y, x

    x = normal(2)
    return outer, [call(x, normal(2)), call(x, x)]


@program(core=True)
def view_of_an_input_returned():
    def outer(x):
        return x[0], x.t(), x.view(-1), x.detach(), x.expand(2, *x.shape)

    return outer, [call(count(2, 2)), call(leaf(3, 2))]


@program
def two_outputs_share_storage():
    def outer(x):
        y = x * 2
        return y, y[1:], y.view(-1, 1)

    return outer, [call(count(3)), call(leaf(2))]


@program
def split_outputs_are_views():
    def outer(x):
        a, b = (x + 1).chunk(2)
        return a, b

    return outer, [call(count(4))]


@program(core=True)
def view_changed_then_base_read():
    def outer(x):
        y = x * 1
        row = y[0]
        row += 10
        y[:, 1].zero_()
        return y.sum(), row, y

    return outer, [call(count(2, 3)), call(leaf(2, 2))]


@program
def view_of_an_input_changed():
    def outer(x):
        x[0].fill_(5)
        x.view(-1)[-1] = 7
        x.t()[0].neg_()
        return x * 2

    return outer, [call(count(2, 2)), call(count(3, 2))]


@program
def base_changed_then_view_read():
    def outer(x):
        y = x + 0
        view = y[1:]
        y.mul_(3)
        y[1] = -1
        return view, view.sum()

    return outer, [call(count(3))]


@program(core=True)
def same_tensor_twice():
    def outer(a, b):
        a.add_(1)
        return a + b, a is b

    x = count(3)
    return outer, [call(x, x), call(count(3), count(3)), call(x, x)]


@program
def overlapping_views_as_arguments():
    def outer(a, b):
        a.add_(1)
        return a * b

    base = count(4)
    return outer, [call(base[:3], base[1:]), call(count(3), count(3)), call(base, base)]


@program
def view_and_base_as_arguments():
    def outer(base, view):
        view.mul_(10)
        return base.sum(), base + 0

    base = count(2, 2)
    return outer, [call(base, base[0]), call(count(2, 2), count(2)), call(base, base.t())]


@program
def mutated_after_being_used():
    def outer(x):
        before = x * 2
        x.zero_()
        after = x + 1
        x.fill_(9)
        return before, after, x

    return outer, [call(count(3)), call(count(2))]


@program
def copy_into_a_slice():
    def outer(cache, new, position):
        cache[:, position : position + new.shape[1]].copy_(new)
        return cache[:, : position + new.shape[1]].sum(1)

    cache = torch.zeros(1, 6)
    return outer, [call(cache, normal(1, 2), 0), call(cache, normal(1, 1), 2), call(cache, normal(1, 1), 3)]


@program
def index_put_with_accumulate():
    def outer(x, index, values):
        x.index_put_((index,), values, accumulate=True)
        x.index_copy_(0, torch.tensor([0]), values[:1])
        x.index_add_(0, index, values)
        x.scatter_add_(0, index, values)
        return x

    return outer, [call(count(4), torch.tensor([1, 1, 3]), torch.ones(3))]


@program
def metadata_changed_in_place():
    def outer(x):
        y = x + 0
        y.t_().unsqueeze_(0)
        x.squeeze_()
        return y, x.shape, y.transpose_(0, 1)

    return outer, [call(count(3, 1)), call(count(1, 2))]


@program
def resize_and_set_data():
    def outer(x):
        y = torch.empty(2)
        y.resize_(3).copy_(x)
        z = torch.zeros(3)
        z.set_(y)
        return y, z

    return outer, [call(count(3))]


@program(core=True)
def data_attribute():
    def outer(x):
        x.data.mul_(2)
        y = x.data
        x.data = x.data + 1
        return y, y.requires_grad, x * 1

    return outer, [call(leaf(2)), call(normal(2))]


@program
def detach_then_mutate():
    def outer(x):
        y = x * 2
        frozen = y.detach()
        frozen.zero_()
        return y, frozen

    return outer, [call(normal(2)), call(normal(3))]


@program(core=True)
def requires_grad_set_in_the_frame():
    def outer(x):
        y = x.detach().clone().requires_grad_()
        z = (y * y).sum()
        (gradient,) = torch.autograd.grad(z, y)
        return gradient, y.is_leaf, y.requires_grad

    return outer, [call(normal(3)), call(leaf(2))]


@program
def requires_grad_set_on_an_input():
    def outer(x):
        x.requires_grad_()
        return x * 3

    return outer, [call(normal(2)), call(normal(2))]


@program
def no_op_conversions_alias():
    def outer(x):
        return x.to(torch.float32), x.contiguous(), x.float(), x.reshape(x.shape), x.clone(), x.view_as(x), x.to(x.device)

    return outer, [call(normal(2, 2)), call(normal(2, 2).t()), call(normal(2).double())]


@program
def reshape_copies_or_views():
    def outer(x):
        y = x.reshape(-1)
        y[0] = 100
        return x.sum(), y

    return outer, [call(count(2, 2)), call(count(2, 2).t()), call(count(1, 2))]


@program
def inplace_on_a_list_of_tensors():
    def outer(xs):
        for i, x in enumerate(xs):
            x.mul_(i)
        torch._foreach_add_(xs, 1.0)
        return torch.stack(xs).sum()

    return outer, [call([count(2), count(2)]), call([count(2), count(2), count(2)])]


@program
def inplace_activation_and_dropout():
    def outer(x):
        y = x * 1
        torch.relu_(y.mul_(3).add_(1))
        z = torch.nn.functional.leaky_relu(x * 2, inplace=True)
        return y, z, torch.nn.functional.dropout(x + 0, 0.5, training=x.shape[0] == 2, inplace=True)

    return outer, [call(normal(3)), call(leaf(2))]


@program
def augmented_assignment_of_an_argument():
    def outer(x, y):
        x += y
        x -= 1
        x @= torch.eye(2)
        return x

    return outer, [call(count(2, 2), normal(2, 2))]


@program
def inplace_with_type_promotion():
    def outer(counts, x):
        counts += x.long()
        counts.floor_divide_(2)
        x += counts
        return counts, x

    return outer, [call(torch.arange(3), count(3)), call(torch.arange(2), count(2))]


@program(raises=RuntimeError)
def inplace_on_a_leaf_refused():
    def outer(x):
        y = x.sum()
        x.add_(1)
        return y

    return outer, [call(normal(2)), call(leaf(2))]


@program(raises=RuntimeError)
def inplace_on_an_expanded_tensor_refused():
    def outer(x):
        y = x + 1
        y.expand(3, 2).add_(1)
        return y

    return outer, [call(normal(1, 2).expand(3, 2).clone()[:1]), call(normal(2))]


@program
def leaf_changed_under_no_grad():
    def outer(w, x, rate):
        loss = (w * x).sum()
        loss.backward()
        with torch.no_grad():
            w -= rate * w.grad
            w.grad.zero_()
        return loss.detach()

    w = leaf(3)
    return outer, [call(w, normal(3), 0.1), call(w, normal(3), 0.1), call(w, normal(3), 0.2)]


@program
def version_counter():
    def outer(x):
        before = x._version
        x.add_(1)
        x[0] = 5
        return x._version - before, x

    return outer, [call(count(2)), call(count(3))]


@program
def alias_kept_across_calls():
    kept = []

    def outer(x):
        kept.append(x)
        kept[0].add_(1)
        return kept[0] + x

    return outer, [call(count(2)), call(count(2)), call(count(2))], kept


@program
def cached_output_returned_again():
    cache = {}

    def outer(x):
        if "y" not in cache:
            cache["y"] = x * 2
        return cache["y"]

    return outer, [call(normal(2)), call(normal(2)), call(normal(3))], cache


@program
def list_of_views_returned_and_changed():
    def outer(x):
        rows = list(x.unbind(0))
        rows[0].mul_(2)
        rows.append(rows[0])
        return rows

    return outer, [call(count(2, 2)), call(count(3, 1))]


@program
def swap_contents():
    def outer(a, b):
        saved = a.clone()
        a.copy_(b)
        b.copy_(saved)
        return a, b

    return outer, [call(count(2), normal(2))]


@program
def fill_a_preallocated_buffer_in_a_loop():
    def outer(x, n):
        result = torch.empty(n, *x.shape)
        for i in range(n):
            result[i] = x * i
            if i:
                result[i] += result[i - 1]
        return result

    return outer, [call(normal(2), 3), call(normal(2), 4)]


@program
def view_dtype_and_bit_tricks():
    def outer(x):
        bits = x.view(torch.int32)
        bits[0] = 0
        return x, bits, (x + 1).view(torch.int32) >> 23

    return outer, [call(count(3) + 1)]


@program
def diagonal_and_triangle_writes():
    def outer(x):
        x.fill_diagonal_(0)
        x.diagonal(1).add_(5)
        torch.diagonal(x, -1)[:] = -1
        x.triu_()
        return x

    return outer, [call(count(3, 3) + 1)]


@program
def real_and_imaginary_views():
    def outer(z):
        z.real.mul_(2)
        z.imag[0] = 0
        return z, z.conj()

    return outer, [call(torch.complex(count(2), count(2) + 1))]


@program
def inference_tensor_argument():
    def outer(x):
        return x * 2, x.is_inference()

    with torch.inference_mode():
        x = count(2)
    return outer, [call(x), call(count(2)), under(torch.inference_mode, count(2))]


@program
def mutation_through_a_nested_structure():
    def outer(batch):
        batch["states"][0]["h"].add_(batch["x"])
        batch["states"].append({"h": batch["states"][0]["h"] * 2})
        return batch["states"][-1]

    return outer, [call({"x": normal(2), "states": [{"h": count(2)}]}), call({"x": normal(3), "states": [{"h": count(3)}]})]


@program
def places_in_the_storage_of_a_view():
    base = count(6, 4)

    def f(x):
        strided = x.as_strided((2, 2), (1, 1)) * 2, x.as_strided((2,), (2,), 1) + 1, torch.as_strided(x, (1,), (1,))
        return strided, x[1:].storage_offset(), (x * 2)[1:].storage_offset(), x.storage_offset(), x.nbytes

    return f, [call(base[:2, :3]), call(base[2:4, 1:3]), call(base[3:5, 1:4]), call(base[1])], base


@program
def data_replaced_by_that_of_another():
    def outer(x, y):
        x.data = y.data
        before, first, second = x * 2, x.data, x.data
        y.add_(1)
        return before, x + 0, first, first is second, x.data_ptr() == y.data_ptr()

    return outer, [call(count(3), normal(3)), call(count(3), normal(3))]


@program
def data_put_back():
    def outer(x, y):
        kept = x.data
        x.data = y * 3
        other = x + 1
        x.data = kept
        return other, x + 1, kept

    return outer, [call(count(3), normal(3)), call(leaf(3), normal(3))]


@program
def data_replaced_and_written():
    def outer(x, y):
        value = y * 3
        x.data = value
        value.mul_(2)
        x.data.add_(1)
        x.sub_(3)
        return x + 1, value, x

    return outer, [call(count(3), normal(3)), call(count(3), normal(3))]


@program
def data_replaced_behind_a_view():
    def outer(x, y):
        flat = x.view(-1)
        x.data = y * 3
        return flat, x.data, f"{x + 1}", [x.data]

    return outer, [call(count(3), normal(3)), call(count(3), normal(3))]


@program
def data_replaced_twice_and_of_another_layout():
    def outer(x, y):
        with torch.no_grad():
            x.data = y * 2
            y.data = x.data + x
            x.data = y.mT.contiguous().mT * 1
        return x + y, x.stride()

    return outer, [call(normal(3, 2), normal(3, 2)), call(leaf(3, 2), normal(3, 2))]


@program
def count_replaced_and_asked_for():
    step = torch.tensor(3.0)

    def outer(x):
        step.data = step + 1.5
        return x * step.item()

    return outer, [call(normal(2)), call(normal(2))], step


@program
def encoder_with_momentum():
    learned, average = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2).requires_grad_(False)

    def outer(x):
        seen = learned(x)
        with torch.no_grad():
            for own, other in zip(average.parameters(), learned.parameters(), strict=True):
                own.data = own.data * 0.9 + other.data * (1.0 - 0.9)
            target = average(x)
        return (seen - target).square().sum()

    return outer, [call(normal(2, 3)), call(leaf(2, 3))], average


@program
def data_of_one_tensor_given_twice():
    def outer(x, y, swap):
        before = x.view(-1)[:2]
        if swap:
            x.data = y.data * 2
        y.data = x.data
        return x + y, before + swap, x is y, x.data_ptr() == y.data_ptr()

    x = normal(3, 3)
    return outer, [call(normal(3, 3), normal(3, 3), True), call(x, x, True), call(x, x, False), call(normal(3, 3), normal(3, 3), False)]


@program(raises=ValueError)
def data_replaced_before_an_error():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3), requires_grad=False)
            self.register_buffer("kept", torch.zeros(3))
            self.calls = 0

        def forward(self, x, most):
            self.weight.data = self.weight.data * 0.5 + x.detach().mean(0)
            self.kept.data = self.weight.data
            self.calls += 1
            if self.calls > most:
                raise ValueError(f"call {self.calls}")
            return x * self.weight + self.kept

    module = Counting()
    return module.forward, [call(leaf(2, 3), 5), call(leaf(4, 3), 5), call(leaf(2, 3), 2), call(leaf(2, 3), 9)], module
