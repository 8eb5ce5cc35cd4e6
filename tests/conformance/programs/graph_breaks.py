"""Programs that cannot be one graph: what must stay right around each break, in every kind of place."""

from __future__ import annotations

import contextlib

import numpy as np
import torch

from tests.conformance.catalogue import call, count, leaf, normal, program

SINK: list[float] = []


def opaque(x):
    """Leaves torch: nothing can capture this."""
    SINK.append(float(np.asarray(x.detach()).sum()))
    return x


@program(core=True)
def break_at_the_top_level():
    def outer(x):
        y = x * 2
        print(y.sum().item())
        return y + 1

    return outer, [call(count(2)), call(leaf(3))]


@program(core=True)
def break_in_a_loop():
    def outer(x, n):
        for i in range(n):
            x = x + i
            print(i, x.sum().item())
            x = x * 2
        return x

    return outer, [call(count(2), 3), call(count(2), 5)]


@program
def break_in_a_long_loop():
    def outer(x):
        total = 0
        for i in range(40):
            x = x + 1
            total += int(x[0].item())
        return x, total

    return outer, [call(count(2)), call(count(2))]


@program
def break_in_a_while_loop():
    def outer(x):
        steps = 0
        while True:
            steps += 1
            x = x * 2
            if x.max() > 50 or steps > 10:
                break
        return x, steps

    return outer, [call(count(3) + 1), call(torch.zeros(2))]


@program(core=True)
def break_inside_with():
    def outer(x):
        with torch.no_grad():
            y = x * 2
            print(torch.is_grad_enabled())
            z = y + x
        return z, x * 3, torch.is_grad_enabled()

    return outer, [call(leaf(2)), call(normal(2))]


@program
def break_inside_a_user_context_manager():
    class Manager:
        def __init__(self, log):
            self.log = log

        def __enter__(self):
            self.log.append("in")
            return self

        def __exit__(self, kind, value, traceback):
            self.log.append("out")
            return kind is KeyError

    def outer(x, log, key):
        with Manager(log) as manager:
            y = x + 1
            print(len(manager.log))
            y = y * {"a": 2}[key]
            log.append("end")
        return x + len(log)

    return outer, [call(count(2), [], "a"), call(count(2), [], "b")]


@program
def break_inside_autocast():
    def outer(a, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            c = a @ b
            print(c.dtype)
            d = c @ b
        return d, a @ b

    return outer, [call(normal(3, 3), normal(3, 3))]


@program
def break_inside_nested_withs():
    def outer(x):
        with torch.no_grad(), contextlib.suppress(ZeroDivisionError):
            with torch.enable_grad():
                y = x * 2
                print("deep")
                z = y * 3
            1 // 0
            z = z * 100
        return z, torch.is_grad_enabled()

    return outer, [call(leaf(2))]


@program(core=True)
def break_inside_try():
    def outer(x, bad):
        try:
            y = x + 1
            print("in try")
            if bad:
                raise ValueError("after the break")
            y = y * 2
        except ValueError as error:
            print("handler")
            y = x * len(str(error))
        finally:
            print("finally")
        return y

    return outer, [call(count(2), False), call(count(2), True)]


@program
def break_inside_except_and_finally():
    def outer(x, log):
        try:
            x = x + log["missing"]
        except KeyError:
            y = x * 2
            print("handling", y.sum().item())
            y = y + 1
        finally:
            print("cleaning")
            log["done"] = True
        return y

    return outer, [call(count(2), {}), call(count(3), {})]


@program(raises=ValueError)
def exception_after_a_break():
    def outer(x, limit):
        y = x + 1
        print("checked")
        if y.shape[0] > limit:
            raise ValueError("too long")
        return y

    return outer, [call(count(2), 2), call(count(3), 2)]


@program(core=True)
def break_in_a_callee():
    def inner(x):
        y = x * 2
        print("inner", y.sum().item())
        return y + 1

    def outer(x):
        z = inner(x) + x
        return inner(z) * 2

    return outer, [call(count(2)), call(leaf(2))]


@program
def break_three_calls_deep():
    def third(x):
        return x + x.sum().item()

    def second(x):
        return third(x * 2) - 1

    def first(x):
        with torch.no_grad():
            return second(x) * 3

    def outer(x):
        return first(x) + second(x)

    return outer, [call(count(2)), call(leaf(2))]


@program
def break_in_a_method_of_a_submodule():
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x):
            y = self.layer(x)
            print("rows", int(y.shape[0]), bool(y.sum() < 1e9))
            return torch.relu(y)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList([Inner(), Inner()])

        def forward(self, x):
            for block in self.blocks:
                x = x + block(x)
            return x

    return Outer(), [call(normal(2, 2)), call(leaf(3, 2))]


@program
def break_in_a_comprehension():
    def outer(xs):
        return [x * x.sum().item() for x in xs], len(xs)

    return outer, [call([count(2), count(3)]), call([count(2)])]


@program
def break_in_a_lambda_passed_to_map_and_sorted():
    def outer(xs):
        ordered = sorted(xs, key=lambda x: x.sum().item())
        return list(map(lambda x: x * float(x[0]), ordered)), ordered

    return outer, [call([count(2) + 3, count(2)]), call([count(2)])]


@program
def break_in_a_generator():
    def outer(x):
        def values():
            for i in range(3):
                print("yield", i)
                yield x * i

        return sum(values())

    return outer, [call(count(2))]


@program
def break_in_the_middle_of_an_expression():
    def outer(x, y):
        return torch.stack([x + 1, y * x.max().item(), x - y]) * (2 + opaque(x).shape[0])

    return outer, [call(count(2), normal(2)), call(count(3), normal(3))]


@program
def break_in_call_arguments():
    def inner(a, b, *, c):
        return a * b + c

    def outer(x):
        return inner(x + 1, x.sum().item(), c=float(x[0]) + x * 2)

    return outer, [call(count(2)), call(count(3))]


@program
def break_in_a_subscript_store_and_delete():
    def outer(x, d):
        d[int(x.sum().item())] = x * 2
        del d[int(x[0].item()) - 1]
        return d

    return outer, [call(count(3), {-1: "gone"}), call(count(2), {-1: 0, 1: 5})]


@program
def break_in_f_string_and_unpacking():
    def outer(x):
        text = f"{x.sum().item():.2f}:{x}"
        a, b = x.tolist()
        return x * a + b, text

    return outer, [call(count(2)), call(count(2) + 1)]


@program
def break_keeps_the_whole_stack():
    def outer(x, xs):
        return (x, [x + 1, {"k": x * 2, "n": print("now")}], *[x * 3], xs, len(xs) + x.sum().item())

    return outer, [call(count(2), [1]), call(count(2), [])]


@program
def break_keeps_cells():
    def outer(x):
        total = x

        def add(y):
            nonlocal total
            total = total + y

        add(x * 2)
        print("cells")
        add(x * 3)
        return total

    return outer, [call(count(2)), call(leaf(2))]


@program
def break_keeps_aliases():
    def outer(x):
        y = x * 2
        row = y[0]
        rows = [row, row]
        print("aliases")
        row.add_(100)
        return y, rows[0] is rows[1], rows

    return outer, [call(count(2, 2)), call(count(1, 2))]


@program
def break_keeps_new_objects():
    class Box:
        def __init__(self, x):
            self.x, self.seen = x, []

    def outer(x):
        box = Box(x * 2)
        box.seen.append(box)
        print("object")
        box.x = box.x + 1
        return box.x, box.seen[0] is box

    return outer, [call(count(2))]


@program
def break_keeps_iterators():
    def outer(xs):
        iterator = iter(xs)
        pairs = zip(range(10), xs)
        first = next(iterator)
        next(pairs)
        print("iterators")
        return first + next(iterator), next(pairs)

    return outer, [call([count(1), count(1) + 1, count(1)])]


@program
def break_keeps_reversed_iterators_of_dictionaries():
    def outer(x, given, table):
        own = reversed({"a": x, "b": x + 1, "c": x + 2}.items())
        name, last = next(own)
        for value in reversed(table.values()):
            x = x * value
            print("step")
        for key in reversed(table):
            x = x + len(key)
            print(key, name)
        return x, last, list(own), next(given)

    table = {"one": 1.0, "three": 3.0, "seven": 7.0}
    return outer, [call(count(2), reversed(table), table) for _ in range(2)]


@program
def break_with_unbound_local():
    def outer(x, flag):
        if flag:
            bonus = x * 2
        print("maybe")
        if flag:
            return x + bonus
        return x

    return outer, [call(count(2), True), call(count(2), False)]


@program
def value_branches_in_sequence():
    def outer(x):
        if x[0] > 0:
            x = x + 1
        if x[1] > 0:
            x = x * 2
        if x.sum() > 100:
            return x
        return -x

    return outer, [call(torch.tensor([a, b])) for a, b in ((1.0, 1.0), (-1.0, 1.0), (100.0, 5.0), (-1.0, -1.0))]


@program
def early_return_on_a_value():
    def outer(x):
        for step in range(5):
            x = x * 0.5
            if x.norm() < 1:
                return x, step
        return x, None

    return outer, [call(count(3)), call(count(3) * 100), call(torch.zeros(2))]


@program
def numpy_function_in_the_middle():
    def outer(x):
        y = torch.relu(x)
        z = torch.from_numpy(np.percentile(y.numpy(), [25, 75]))
        return y * z[0].float(), z

    return outer, [call(count(4)), call(count(5))]


@program
def backward_inside_the_frame():
    def outer(w, x):
        loss = (w * x).pow(2).sum()
        loss.backward()
        gradient = w.grad.clone()
        return gradient, loss.detach()

    return outer, [call(leaf(3), normal(3)), call(leaf(2), normal(2))]


@program
def disabled_callee():
    @torch._disable_dynamo
    def log_norm(x):
        SINK.append(float(x.norm()))
        return x + 1

    def outer(x):
        return log_norm(x * 2) * 3

    return outer, [call(count(2)), call(leaf(2))]


@program
def builtin_without_source():
    def outer(x, text):
        import zlib

        return x * zlib.crc32(text), memoryview(text)[0]

    return outer, [call(count(2), b"a"), call(count(2), b"b")]


@program
def data_dependent_slice():
    def outer(x, lengths):
        pieces = []
        for row, length in zip(x, lengths):
            pieces.append(row[:length])
        return torch.cat(pieces)

    return outer, [call(count(2, 3), torch.tensor([1, 3])), call(count(2, 3), torch.tensor([2, 0])), call(count(1, 3), [2])]


@program
def greedy_decoding_loop():
    def outer(table, token, limit):
        tokens = [token]
        while len(tokens) < limit:
            logits = table[tokens[-1]]
            following = logits.argmax().item()
            tokens.append(following)
            if following == 0:
                break
        return torch.tensor(tokens)

    table = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 3.0], [1.0, 0.0, 0.0]])
    return outer, [call(table, 1, 5), call(table, 2, 5), call(table, 1, 2)]


@program
def newton_iteration_until_converged():
    def outer(a):
        x = a.clone()
        for iteration in range(50):
            step = 0.5 * (x + a / x)
            if torch.allclose(step, x, atol=1e-4):
                break
            x = step
        return x, iteration

    return outer, [call(torch.tensor([4.0, 9.0])), call(torch.tensor([1.0, 1.0])), call(torch.tensor([100.0, 2.0]))]


@program
def topological_walk_with_dict_of_tensors():
    def outer(graph, x):
        values = {"in": x}
        pending = list(graph)
        while pending:
            name = pending.pop(0)
            if any(source not in values for source in graph[name]):
                pending.append(name)
                continue
            values[name] = torch.tanh(sum(values[source] for source in graph[name]))
        return values["out"]

    graph = {"out": ["a", "b"], "a": ["in"], "b": ["a", "in"]}
    return outer, [call(graph, normal(2)), call({"out": ["in"]}, normal(2))]


@program
def assertion_on_a_value_passes():
    def outer(x):
        assert x.min() >= 0
        y = x.sqrt()
        torch._check(y.shape[0] > 0)
        assert not torch.isnan(y).any(), "NaN"
        return y

    return outer, [call(count(3)), call(count(2))]


@program
def star_call_of_an_opaque_function():
    def report(*values, **named):
        SINK.extend(float(value) for value in (*values, *named.values()))
        return len(SINK) * 0

    def outer(x):
        y = x * 2
        zero = report(*y, last=y.sum())
        return y + zero

    return outer, [call(count(2)), call(count(3))]


@program
def all_variables_read_after_a_break():
    def f(x, scale):
        label = f"{scale}"
        print("before")
        named = "{label} {scale}".format(**locals())
        print(named)
        return x * eval("scale + 1"), sorted(locals())

    return f, [call(count(2), 3), call(count(2), 4)]


@program
def global_made_and_deleted():
    def f(x):
        global MADE_AND_DELETED
        MADE_AND_DELETED = 5
        y = x + MADE_AND_DELETED
        del MADE_AND_DELETED
        try:
            del MADE_AND_DELETED
        except NameError as error:
            return y, str(error), "MADE_AND_DELETED" in globals()

    return f, [call(count(2)), call(count(2))]
