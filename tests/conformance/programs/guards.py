"""Programs called again after one thing that they read has changed, each thing in turn."""

from __future__ import annotations

import functools
import itertools
import types

import numpy as np
import torch
from torch import nn

from tests.conformance.catalogue import after, call, count, integers, leaf, normal, program, under

THRESHOLD = 1
TABLE = {"scale": 2.0}


@program(core=True)
def every_property_of_a_tensor():
    def outer(x):
        return x * 2 + x.dim()

    return outer, [
        call(normal(2, 3)),
        call(normal(3, 2).t()),
        call(normal(2, 3).double()),
        call(integers(2, 3)),
        call(normal(4, 3)),
        call(normal(2, 3, 1)),
        call(leaf(2, 3)),
        call(normal(2, 3)),
    ]


@program
def shapes_that_keep_changing():
    def outer(x):
        return x.softmax(-1).sum(0) * x.shape[0]

    return outer, [call(normal(n, 3)) for n in (2, 3, 4, 5, 7, 1, 0, 12)]


@program
def two_sizes_that_were_equal():
    def outer(x, y):
        if x.shape[0] == y.shape[0]:
            return x + y
        return x.sum() + y.sum()

    return outer, [call(normal(3), normal(3)), call(normal(4), normal(4)), call(normal(4), normal(5)), call(normal(1), normal(5))]


@program
def size_one_broadcasts():
    def outer(x, y):
        return x * y

    return outer, [call(normal(3, 2), normal(3, 2)), call(normal(4, 2), normal(4, 2)), call(normal(4, 2), normal(1, 2)), call(normal(1, 2), normal(4, 1))]


@program
def range_over_a_size():
    def outer(x):
        return [x[i] * i for i in range(x.shape[0])]

    return outer, [call(count(n)) for n in (2, 3, 4, 1)]


@program
def size_in_a_string_and_a_dict():
    def outer(x):
        factor = {3: 5, 4: 6}.get(x.shape[0], 7) + {4: 1}.setdefault(x.shape[0], 2)
        return {x.shape[0]: x * 2, str(x.shape[0]): "size"}, x.shape[0] in {3, 4}, x * factor

    return outer, [call(count(n)) for n in (2, 3, 4, 5)]


@program
def tensor_becomes_none():
    def outer(x, mask=None):
        if mask is not None:
            x = x.masked_fill(mask, 0)
        return x * 2

    return outer, [call(count(2)), call(count(2), torch.tensor([True, False])), call(count(2), None)]


@program
def argument_becomes_another_container():
    def outer(xs):
        return sum(xs) * len(xs), type(xs).__name__

    return outer, [call([count(2)] * 2), call((count(2),) * 2), call({count(2)}), call([count(2), 1])]


@program
def nested_container_shape():
    def outer(batch):
        return [part["x"] * part.get("w", 1) for part in batch["parts"]]

    return outer, [
        call({"parts": [{"x": count(2)}]}),
        call({"parts": [{"x": count(2), "w": 3}]}),
        call({"parts": [{"x": count(2), "w": count(2)}, {"x": count(3)}]}),
        call({"parts": []}),
    ]


@program
def string_argument():
    def outer(x, reduction):
        if reduction == "mean":
            return x.mean()
        return x.sum() if reduction.startswith("s") else x

    return outer, [call(count(3), name) for name in ("mean", "sum", "none", "some", "mean")]


@program(core=True)
def global_dict_entry():
    TABLE["scale"] = 2.0

    def outer(x):
        return x * TABLE["scale"] + TABLE.get("shift", 0)

    return outer, [
        call(count(2)),
        after(lambda: TABLE.update(scale=5.0), count(2)),
        after(lambda: TABLE.update(shift=1.0), count(2)),
        after(lambda: TABLE.pop("shift"), count(2)),
    ]


@program
def global_number_compared():
    globals()["THRESHOLD"] = 1

    def outer(x):
        return x * 2 if x.shape[0] > THRESHOLD else x

    return outer, [call(count(2)), after(lambda: globals().update(THRESHOLD=5), count(2))]


@program
def global_shadowing_a_builtin():
    space = {"torch": torch, "__builtins__": __builtins__}
    exec("def outer(x):\n    return x * len([1, 2]) + abs(-3)\n", space)
    return space["outer"], [call(count(2)), after(lambda: space.update(len=lambda _: 10), count(2)), after(lambda: space.pop("len"), count(2))]


@program
def module_function_replaced():
    library = types.ModuleType("library")
    library.step = lambda x: x + 1

    def outer(x):
        return library.step(x)

    return outer, [call(count(2)), after(lambda: setattr(library, "step", lambda x: x * 3), count(2))]


@program
def object_attribute_changes_type():
    holder = types.SimpleNamespace(bias=1)

    def outer(x):
        return x + holder.bias if holder.bias is not None else x

    return outer, [
        call(count(2)),
        after(lambda: setattr(holder, "bias", 1.5), count(2)),
        after(lambda: setattr(holder, "bias", None), count(2)),
        after(lambda: setattr(holder, "bias", count(2)), count(2)),
        after(lambda: setattr(holder, "bias", True), count(2)),
    ]


@program
def object_changes_class():
    class First:
        def apply(self, x):
            return x + 1

    class Second(First):
        def apply(self, x):
            return x * 2

    thing = First()

    def outer(x):
        return thing.apply(x)

    return outer, [call(count(2)), after(lambda: setattr(thing, "__class__", Second), count(2))]


@program(core=True)
def grad_mode_of_the_caller():
    weight = leaf(2)

    def outer(x):
        y = x * weight
        return y, y.requires_grad, torch.is_grad_enabled()

    return outer, [call(normal(2)), under(torch.no_grad, normal(2)), call(normal(2)), under(torch.inference_mode, normal(2))]


@program
def requires_grad_changes():
    weight = normal(2)

    def outer(x):
        return x * weight

    return outer, [call(normal(2)), after(lambda: weight.requires_grad_(), normal(2)), call(leaf(2))], weight


@program
def default_dtype_of_the_caller():
    def outer(n):
        return torch.ones(n) * 2, torch.tensor(1.5), torch.arange(n) / 2

    return outer, [
        call(2),
        after(lambda: torch.set_default_dtype(torch.float64), 2),
        after(lambda: torch.set_default_dtype(torch.float32), 2),
    ]


@program
def default_device_of_the_caller():
    def outer(x):
        return torch.zeros(2, device=x.device) + x, torch.get_default_device()

    return outer, [call(normal(2)), under(lambda: torch.device("cpu"), normal(2))]


@program
def autocast_of_the_caller():
    def outer(a, b):
        return a @ b, torch.is_autocast_enabled("cpu")

    a, b = normal(2, 2), normal(2, 2)
    return outer, [
        call(a, b),
        under(lambda: torch.autocast("cpu", dtype=torch.bfloat16), a, b),
        under(lambda: torch.autocast("cpu", dtype=torch.float16), a, b),
        call(a, b),
    ]


@program
def deterministic_flag_read():
    def outer(x):
        return x + 1 if torch.are_deterministic_algorithms_enabled() else x - 1

    return outer, [call(count(2)), after(lambda: torch.use_deterministic_algorithms(True), count(2))]


@program
def training_flag_read_deep_inside():
    class Inner(nn.Module):
        def forward(self, x):
            return x * 2 if self.training else x

    model = nn.Sequential(nn.Sequential(Inner()), Inner())
    return model, [call(count(2)), after(model.eval, count(2)), after(model[0][0].train, count(2)), after(model.train, count(2))]


@program
def parameter_dtype_changes():
    model = nn.Linear(2, 2)

    def outer(x):
        return model(x.to(model.weight.dtype))

    return outer, [call(normal(2)), after(model.double, normal(2)), after(model.bfloat16, normal(2)), after(model.float, normal(2))], model


@program
def parameter_becomes_another_size():
    model = nn.Linear(2, 2)

    def grow():
        model.weight = nn.Parameter(torch.ones(3, 2))
        model.bias = nn.Parameter(torch.zeros(3))

    return model, [call(normal(2)), after(grow, normal(2))]


@program
def list_of_modules_grows():
    layers = [nn.Linear(2, 2)]

    def outer(x):
        for layer in layers:
            x = layer(x)
        return x

    return outer, [call(normal(2)), after(lambda: layers.append(nn.Tanh()), normal(2)), after(lambda: layers.reverse(), normal(2))]


@program
def hook_on_a_deep_child_appears():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    handles = []

    def add():
        handles.append(model[0][0].register_forward_pre_hook(lambda module, args: (args[0] * 0,)))

    return model, [call(normal(2)), after(add, normal(2)), after(lambda: handles[0].remove(), normal(2))]


@program
def aliasing_of_arguments_changes():
    def outer(a, b):
        a.mul_(2)
        return a + b

    x, y = count(2) + 1, count(2) + 5
    return outer, [call(x, y), call(x, x), call(y, x), call(y, y)]


@program
def identity_of_objects_changes():
    first, second = types.SimpleNamespace(n=1), types.SimpleNamespace(n=1)
    holder = [first, first]

    def outer(x):
        holder[0].n += 1
        return x * holder[1].n, holder[0] is holder[1]

    return outer, [call(count(2)), after(lambda: holder.__setitem__(1, second), count(2))], holder


@program
def dict_order_changes():
    def outer(d):
        total = 0
        for i, key in enumerate(d):
            total = total + d[key] * i
        return total, list(d)

    return outer, [call({"a": count(2), "b": count(2) + 1}), call({"b": count(2) + 1, "a": count(2)})]


@program
def dict_keys_read_not_values():
    def outer(d, x):
        return x * len(d), "a" in d

    return outer, [call({"a": 1}, count(2)), call({"a": 2}, count(2)), call({"b": 1}, count(2)), call({"b": 1, "a": 1}, count(2))]


@program
def set_membership_changes():
    def outer(x, names):
        return x + 1 if "relu" in names else x - 1

    return outer, [call(count(2), {"relu"}), call(count(2), {"tanh"}), call(count(2), {"tanh", "relu"})]


@program
def attribute_appears_and_disappears():
    class Holder:
        pass

    holder = Holder()

    def outer(x):
        return x * holder.scale if hasattr(holder, "scale") else x

    return outer, [
        call(count(2)),
        after(lambda: setattr(holder, "scale", 2), count(2)),
        after(lambda: delattr(holder, "scale"), count(2)),
        after(lambda: setattr(Holder, "scale", 5), count(2)),
    ]


@program
def property_appears_on_the_class():
    class Holder:
        def __init__(self):
            self.scale = 2.0

    holder = Holder()

    def outer(x):
        return x * holder.scale

    return outer, [call(count(2)), after(lambda: setattr(Holder, "scale", property(lambda self: 7.0)), count(2))]


@program
def partial_argument_changes():
    def scale(x, factor):
        return x * factor

    table = {"step": functools.partial(scale, factor=2)}

    def outer(x):
        return table["step"](x)

    return outer, [
        call(count(2)),
        after(lambda: table.update(step=functools.partial(scale, factor=3)), count(2)),
        after(lambda: table.update(step=functools.partial(scale, 10)) or table.update(step=lambda x: -x), count(2)),
    ]


@program
def closure_of_a_helper_changes():
    factor = 2

    def helper(x):
        return x * factor

    def change():
        nonlocal factor
        factor = 9

    def outer(x):
        return helper(x) + 1

    return outer, [call(count(2)), after(change, count(2))]


@program
def boolean_and_integer_are_different():
    def outer(x, flag):
        return (x + flag, flag is True, flag == 1)

    return outer, [call(count(2), value) for value in (True, 1, 1.0, False, 0)]


@program
def negative_zero_and_nan_constants():
    def outer(x, value):
        return x / value, value

    return outer, [call(count(2) + 1, value) for value in (0.0, -0.0, float("nan"), float("nan"), 0.0)]


@program
def large_and_negative_integers():
    def outer(x, n):
        return x * (n % 7), n > 2**40, n

    return outer, [call(count(2), n) for n in (3, 2**50, -(2**62), 10**30, 3)]


@program
def type_argument_changes():
    def outer(x, kind):
        return kind(2) * x, kind.__name__

    return outer, [call(count(2), kind) for kind in (int, float, bool, int)]


@program
def dtype_argument_changes():
    def outer(x, dtype):
        return x.to(dtype), dtype.is_floating_point

    return outer, [call(count(2), dtype) for dtype in (torch.float64, torch.int32, torch.bool, torch.float64)]


@program
def unrelated_state_changes():
    state = types.SimpleNamespace(read=2.0, ignored=0, table={"read": 1.0})

    def outer(x):
        return x * state.read + state.table["read"]

    return outer, [
        call(count(2)),
        after(lambda: setattr(state, "ignored", [1]), count(2)),
        after(lambda: state.table.update(other=5), count(2)),
        after(lambda: state.table.update(read=5.0), count(2)),
    ]


@program
def more_variants_than_the_limit():
    def outer(x, name):
        return x + len(name), name

    return outer, [call(count(2), "n" * n) for n in range(14)]


@program
def storage_offset_and_alignment():
    base = normal(16)

    def outer(x):
        return x * 2 + x.sum()

    return outer, [call(base[offset : offset + 4]) for offset in (0, 1, 4, 7)]


@program
def special_methods_of_values_given_as_functions():
    holder = types.SimpleNamespace(next_number=itertools.count().__next__)

    def outer(x, op, among):
        made = [op(2), list(map(op, [1, 2])), holder.next_number(), next(filter(among, range(9)), None)]
        return x * 2, made, op.__self__, op

    return outer, [
        call(count(3), (2.0).__add__, (1, 2).__contains__),
        call(count(3), (3.0).__add__, (5,).__contains__),
        call(count(3), (4.0).__add__, range(7, 9).__contains__),
        call(count(3), np.float64(1.5).__mul__, {}.__contains__),
        call(count(3), np.float64(2.5).__mul__, (4).__lt__),
        call(count(3), np.float64(3.5).__mul__, (5).__lt__),
        after(lambda: setattr(holder, "next_number", iter("abcdef").__next__), count(3), (3).__mul__, (5).__le__),
        call(count(3), (4).__mul__, {5, 6}.__contains__),
        call(count(3), "abcd".__getitem__, [3].__contains__),
        call(count(3), "efgh".__getitem__, [].__contains__),
    ]
