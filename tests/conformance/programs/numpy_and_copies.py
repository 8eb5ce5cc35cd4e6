"""NumPy's numbers, deep copies of tensors, context variables, and errors that were made outside."""

from __future__ import annotations

import contextvars
import copy

import numpy as np
import torch

from tests.conformance.catalogue import after, call, count, integers, leaf, normal, program

SCALE = contextvars.ContextVar("scale", default=2.0)
UNSET = contextvars.ContextVar("unset")


class Refused(Exception):
    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


class Holder:
    def __init__(self, tensor):
        self.tensor = tensor

    def __deepcopy__(self, memo):
        return Holder(copy.deepcopy(self.tensor, memo))


@program(core=True)
def numbers_of_numpy_beside_tensors():
    def outer(x, i, small, large, factor):
        parts = [x * small, small * x, x + large, x[i], x ** factor, torch.clamp(x, max=small), x.sum() / large, i * x, i - x]
        return parts, x.reshape(i, -1), torch.full((2,), small), torch.zeros(i, 2), torch.arange(factor)

    numbers = np.int64(1), np.float32(0.1), np.float64(3.5), np.uint8(2)
    return outer, [call(count(3), *numbers), call(integers(4), *numbers), call(count(3).half(), *numbers),
                   call(count(3), np.int32(1), np.float16(0.5), np.float64(-0.0), np.int8(3)), call(leaf(3), *numbers)]


@program
def arithmetic_of_numpy_numbers():
    def outer(x, number):
        kept = number * 2 + 1
        texts = f"{number:.2f}", str(number), repr(kept), type(kept).__name__, isinstance(number, float)
        return x * kept + (1 if number < 2 else 3), kept, texts, int(number), getattr(number, "dtype", None) is None, number == 1, [7, 8, 9][int(number)]

    return outer, [call(normal(2), np.float32(1.5)), call(normal(2), np.float64(1.5)), call(normal(2), np.int64(1)),
                   call(normal(2), 1.5), call(normal(2), np.float32(2.5)), call(normal(2), np.float32(0.5))]


@program
def numpy_numbers_that_vary():
    def outer(x, time):
        return (x * time).sin() + time, time * 2

    return outer, [call(normal(3), np.float32(step) / 10) for step in range(12)]


@program
def flags_of_numpy():
    def outer(x, flag, other):
        return (x + 1 if flag else x - 1), not flag, flag and other, bool(flag) is other, x * int(flag)

    return outer, [call(normal(3), np.bool_(True), True), call(normal(3), np.bool_(False), True), call(normal(3), True, True)]


@program
def numbers_of_numpy_made_inside():
    def outer(x, settings):
        step = np.float32(0.5) * settings["steps"]
        return x * step, np.int64(3) // 2, {"step": step}

    return outer, [call(normal(3), {"steps": 2}), call(normal(3), {"steps": 3}), call(normal(3), {"steps": np.int64(3)})]


@program(core=True)
def arithmetic_of_numpy_in_a_forward():
    def attend(x, parts):
        scale = 1 / np.sqrt(x.shape[-1])
        scores = np.sqrt(0.5) * (x @ x.t()) * scale / np.log(2.0)
        chunks = x.chunk(int(np.ceil(x.shape[0] / parts)), 0)
        flat = x.reshape(-1, np.prod(x.shape[1:]))
        large = scores if np.isnan(scale) or np.max([parts, 1]) > 9 else scores * np.float32(np.clip(parts, 0, 2))
        return large, chunks, flat, scale > 0.1, np.floor(2.7).astype(int), torch.zeros(np.prod((2, parts))), np.power(2, parts)

    return attend, [call(leaf(4, 6), 3), call(normal(8, 6), 3), call(normal(5, 7), 2)]


@program
def what_numpy_warns_of_or_makes_arrays_of():
    def outer(x):
        many = np.cumsum([1, 2])
        return x * np.log(0.0), x + np.sqrt(many)[1].item(), np.round(2.567, decimals=1), np.divide(1, 2, dtype=np.float32)

    return outer, [call(normal(2)), call(normal(3))]


@program(core=True)
def tensors_of_numpy_numbers_have_their_types():
    settings = {"half": np.float32(2), "whole": np.float64(3), "count": np.int32(4)}

    def outer(x):
        half, whole, count = settings.values()
        made = torch.tensor(half), torch.tensor(data=whole), torch.tensor([count, 1]), torch.as_tensor(count)
        return made, x.new_tensor(whole), torch.where(x > 0, whole, half), torch.full((2,), count), torch.scalar_tensor(whole)

    return outer, [call(normal(3)), call(integers(3))]


@program
def configuration_with_numpy_numbers():
    settings = {"rate": np.float32(0.1), "size": np.int64(2), "names": [np.int32(0), np.int32(2)]}

    def outer(x):
        return x[: settings["size"]] * settings["rate"], [x[i] for i in settings["names"]]

    return outer, [call(normal(4)), after(lambda: settings.update(rate=np.float32(0.2)), normal(4)),
                   after(lambda: settings.update(size=3), normal(4)), after(lambda: settings["names"].pop(), normal(4))]


@program(core=True)
def deep_copies_of_tensors():
    def outer(x, y):
        doubled = x * 2
        state = copy.deepcopy({"x": x, "again": [x, doubled], "y": (y, 1)})
        state["x"].add_(1)
        y.mul_(3)
        return state, state["x"] is state["again"][0], doubled

    def shared():
        base = normal(3)
        return call(base, base.view(3))

    same = normal(3)
    return outer, [call(normal(3), normal(2, 3).t()), call(normal(4), normal(3)), shared(), call(same, same), call(normal(6)[::2], normal(3))]


@program
def deep_copy_of_a_tensor_with_more_to_it():
    marked, plain = normal(3), normal(3)
    marked.mark = "kept"

    def outer(x):
        twin = copy.deepcopy(x)
        return twin * 2, getattr(twin, "mark", "none")

    return outer, [call(plain), call(marked), after(lambda: setattr(plain, "mark", 1), plain), call(torch.nn.Parameter(normal(3)))]


@program
def deep_copy_by_a_method():
    def outer(holder, x):
        twins = copy.deepcopy([holder, {"same": holder}, x])
        twins[0].tensor.add_(1)
        return twins[0] is twins[1]["same"], twins[0].tensor, twins[2] + holder.tensor

    holder = Holder(normal(3))
    return outer, [call(holder, normal(3)), call(holder, holder.tensor), after(lambda: setattr(holder, "tensor", normal(2)), holder, normal(2))]


@program(raises=RuntimeError)
def deep_copy_of_what_was_computed():
    def outer(x):
        return copy.deepcopy(x * 2)

    return outer, [call(normal(2)), call(leaf(2))]


@program
def context_variables():
    def outer(x):
        return x * SCALE.get() + UNSET.get(1.0), SCALE.get(7), SCALE.name

    tokens = []
    return outer, [call(normal(3)), after(lambda: tokens.append(SCALE.set(5.0)), normal(3)),
                   after(lambda: tokens.append(UNSET.set(3.0)), normal(3)), after(lambda: SCALE.reset(tokens[0]), normal(3)),
                   after(lambda: UNSET.reset(tokens[1]), normal(3))]


@program(raises=LookupError)
def a_context_variable_without_a_value():
    missing = contextvars.ContextVar("missing")

    def outer(x, required):
        token = SCALE.set(4.0)
        try:
            return x * SCALE.get(), missing.get() if required else 0
        finally:
            SCALE.reset(token)

    return outer, [call(normal(2), False), call(normal(2), True), after(lambda: missing.set(3.0), normal(2), True)]


@program
def errors_from_outside():
    error = Refused("too large", 3)

    def outer(x, failure):
        code = failure.code if isinstance(failure, Refused) else len(failure.args)
        return x * code, failure.args, failure.__cause__, type(failure).__name__

    return outer, [call(normal(2), error), after(lambda: setattr(error, "code", 5), normal(2), error), call(normal(2), ValueError("a", 1)),
                   after(lambda: setattr(error, "args", ("other",)), normal(2), error)]
