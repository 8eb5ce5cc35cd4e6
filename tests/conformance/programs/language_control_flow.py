"""Programs about branches, loops, `match`, unpacking, slices and expressions of the language."""

from __future__ import annotations

import dataclasses
import enum

import torch

from tests.conformance.catalogue import call, count, integers, normal, program


@program(core=True)
def branch_on_an_argument():
    def outer(x, flag):
        if flag:
            return x + 1
        return x - 1

    return outer, [call(normal(2), True), call(normal(2), False), call(normal(2), True)]


@program
def branch_on_shape():
    def outer(x):
        if x.size(0) == 3:
            return x.sum()
        elif x.shape[0] > 3:
            return x.mean()
        return x.prod()

    return outer, [call(normal(3)), call(normal(5)), call(normal(2)), call(normal(3))]


@program
def branch_on_dtype_and_rank():
    def outer(x):
        if x.dtype == torch.float32 and x.dim() == 2:
            return x.t()
        return x.float().reshape(1, -1) if x.dtype is not torch.bool else ~x

    return outer, [call(normal(2, 3)), call(integers(4)), call(normal(3) > 0), call(normal(2, 3, 1))]


@program(core=True)
def branch_on_a_tensor():
    def outer(x):
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    return outer, [call(torch.ones(3)), call(-torch.ones(3)), call(torch.ones(4))]


@program
def branch_on_a_tensor_without_else():
    def outer(x):
        if (x > 0).all():
            x = x.sqrt()
        return x * 3

    return outer, [call(count(3) + 1), call(count(3) - 1)]


@program
def conditional_expression_on_a_tensor():
    def outer(x):
        sign = 1 if x.mean() > 0 else -1
        return x * sign

    return outer, [call(torch.ones(3)), call(-torch.ones(3))]


@program
def boolean_operators_with_short_circuit():
    def outer(x, options, default):
        chosen = options.get("scale") or default
        enabled = chosen and options and "shift" in options
        return x * chosen + (options["shift"] if enabled else 0), enabled

    return outer, [
        call(normal(2), {}, 2.0),
        call(normal(2), {"scale": 0}, 3.0),
        call(normal(2), {"scale": 4.0, "shift": 1.0}, 3.0),
    ]


@program
def boolean_operator_on_tensors():
    def outer(x, y):
        return (x.sum() > 0 and y) if y is not None else x

    return outer, [call(torch.ones(2), normal(2)), call(-torch.ones(2), normal(2)), call(normal(2), None)]


@program
def not_of_everything():
    def outer(x, values):
        return x + 1, [not value for value in values], not x.sum() > 0

    return outer, [call(torch.ones(2), [0, 1, "", "a", [], [0], None]), call(-torch.ones(2), [{}])]


@program(core=True)
def chained_comparison():
    def outer(x, low, high):
        inside = low < x.shape[0] <= high
        return x * 2 if inside else x, inside

    return outer, [call(normal(3), 1, 3), call(normal(3), 3, 5), call(normal(3), 1, 2)]


@program
def chained_comparison_of_tensors():
    def outer(x):
        return x[0] if 0 < x[0] < x[1] else x[1]

    return outer, [call(torch.tensor([1.0, 2.0])), call(torch.tensor([3.0, 2.0])), call(torch.tensor([-1.0, 2.0]))]


@program
def identity_and_membership():
    def outer(x, y, names):
        return x is y, x is not None, "a" in names, "z" not in names, x + y

    x = normal(2)
    return outer, [call(x, x, {"a"}), call(x, normal(2), ["z"]), call(x, x, "abc")]


@program(core=True)
def walrus():
    def outer(x, limit):
        results = []
        while (n := len(results)) < limit:
            results.append(x * n)
        if (total := sum(results)) is not None:
            return total, n
        return x

    return outer, [call(normal(2), 3), call(normal(2), 2)]


@program
def walrus_inside_a_comprehension():
    def outer(xs):
        kept = [y for x in xs if (y := x.relu()).shape[0] > 1]
        return kept, y

    return outer, [call([normal(1), normal(2), normal(3)]), call([normal(4)])]


@program(core=True)
def for_loop_over_a_range():
    def outer(x, n):
        for i in range(1, n, 2):
            x = x * i + 1
        return x

    return outer, [call(normal(2), 6), call(normal(2), 1), call(normal(2), 9)]


@program
def for_else_and_break():
    def outer(x, stop):
        for i in range(4):
            if i == stop:
                found = i
                break
            x = x + i
        else:
            found = None
            x = -x
        return x, found

    return outer, [call(normal(2), 2), call(normal(2), 10), call(normal(2), 0)]


@program
def continue_in_nested_loops():
    def outer(x, n):
        for i in range(n):
            if i % 2:
                continue
            for j in range(n):
                if j > i:
                    break
                if j == 1:
                    continue
                x = x + i * j
        return x

    return outer, [call(normal(2), 4), call(normal(2), 5)]


@program
def while_with_else():
    def outer(x, n):
        while n > 0:
            x = x * 2
            n -= 1
            if n == 5:
                break
        else:
            x = x + 100
        return x, n

    return outer, [call(count(2), 3), call(count(2), 7)]


@program(core=True)
def while_on_a_tensor():
    def outer(x):
        steps = 0
        while x.sum() > 1:
            x = x / 2
            steps += 1
        return x, steps

    return outer, [call(torch.full((2,), 8.0)), call(torch.full((2,), 1.0)), call(torch.zeros(2))]


@program
def while_true_with_return():
    def outer(x, limit):
        n = 0
        while True:
            n += 1
            x = x + n
            if n >= limit:
                return x

    return outer, [call(count(2), 1), call(count(2), 4)]


@program(core=True)
def loop_over_a_tensor():
    def outer(rows):
        total = torch.zeros(rows.shape[1])
        for row in rows:
            total = total + row * row
        return total

    return outer, [call(normal(3, 2)), call(normal(4, 2)), call(torch.zeros(0, 2))]


@program
def loop_that_breaks_on_a_value():
    def outer(rows):
        taken = []
        for row in rows:
            if row.sum() > 10:
                break
            taken.append(row * 2)
        return taken

    return outer, [call(count(4, 2)), call(count(2, 2)), call(count(6, 2))]


@program
def enumerate_zip_reversed():
    def outer(xs, ys):
        total = 0
        for i, (x, y) in enumerate(zip(xs, ys), start=1):
            total = total + i * x * y
        for x in reversed(xs):
            total = total * 0.5 + x
        return total

    return outer, [call([normal(2), normal(2)], [normal(2), normal(2)]), call([normal(2)] * 3, [normal(2)] * 2)]


@program
def loop_over_dict_items():
    def outer(named):
        result = {}
        for name, tensor in named.items():
            result[name.upper()] = tensor * len(name)
        return result

    return outer, [call({"a": normal(1), "bb": normal(2)}), call({"bb": normal(2), "a": normal(1)}), call({})]


@program
def range_from_the_end():
    def outer(x):
        return [x[i] for i in range(len(x) - 1, -1, -1)], range(3, 9, 2)[1], 5 in range(0, 10, 5)

    return outer, [call(count(3)), call(count(2))]


@program(core=True)
def match_on_constants_and_captures():
    def outer(x, command):
        match command:
            case "double":
                return x * 2
            case ["add", amount]:
                return x + amount
            case ["sum", *rest] if len(rest) > 1:
                return x + sum(rest)
            case {"scale": factor, **others}:
                return x * factor, others
            case None | False:
                return x
            case _:
                return -x

    x = count(3)
    commands = ["double", ["add", 5], ["sum", 1, 2, 3], {"scale": 3.0, "other": 1}, None, 42, False, ["sum", 1]]
    return outer, [call(x, command) for command in commands]


@program
def match_on_classes():
    @dataclasses.dataclass
    class Scale:
        factor: float

    class Shift:
        __match_args__ = ("amount",)

        def __init__(self, amount):
            self.amount = amount

    def outer(x, step):
        match step:
            case Scale(factor=1.0):
                return x
            case Scale(factor):
                return x * factor
            case Shift(amount) if amount > 0:
                return x + amount
            case Shift(amount=other):
                return x - other * 10
            case int(n) | float(n):
                return x + n
            case str():
                return step

    steps = [Scale(1.0), Scale(2.0), Shift(3.0), Shift(-1.0), 7, 0.5, "text"]
    return outer, [call(count(2), step) for step in steps]


@program
def match_on_tensor_type_and_enum():
    class Mode(enum.Enum):
        ADD = 1
        MULTIPLY = 2

    def outer(value, mode):
        match (value, mode):
            case (torch.Tensor(), Mode.ADD):
                return value + 1
            case (torch.Tensor(shape=(3,)), Mode.MULTIPLY):
                return value * 3
            case (torch.Tensor() as tensor, _):
                return tensor * 2
            case (other, _):
                return other

    return outer, [
        call(normal(3), Mode.ADD),
        call(normal(3), Mode.MULTIPLY),
        call(normal(2), Mode.MULTIPLY),
        call(5, Mode.ADD),
    ]


@program
def match_on_shape():
    def outer(x):
        match x.shape:
            case (n,):
                return x * n
            case (n, m) if n == m:
                return x.trace()
            case (_, m):
                return x.sum(0) + m
            case (first, *_, last):
                return x.flatten()[: first * last]

    return outer, [call(normal(3)), call(normal(2, 2)), call(normal(2, 3)), call(normal(2, 3, 2))]


@program(core=True)
def tuple_unpacking_with_star():
    def outer(values):
        first, *middle, last = values
        (a, b), c = (first, last), middle
        return a - b, c, len(middle)

    return outer, [call([normal(2) for _ in range(n)]) for n in (2, 3, 5)]


@program
def unpacking_a_tensor():
    def outer(x):
        a, b = x
        (c, d), e = a, b
        first, *rest = x.unbind()
        return c + d, e, first, rest

    return outer, [call(normal(2, 2)), call(normal(2, 2))]


@program(raises=ValueError)
def unpacking_too_few():
    def outer(values):
        a, b, c = values
        return a + b + c

    return outer, [call([normal(1)] * 3), call([normal(1)] * 2)]


@program
def swap_and_rotate():
    def outer(a, b, c):
        a, b = b, a
        a, b, c = c, a, b
        return a, b, c

    return outer, [call(normal(1), normal(2), normal(3))]


@program
def augmented_assignments():
    def outer(x, n):
        y = x.clone()
        y += 1
        y *= 2
        y -= x
        y /= 3
        y **= 2
        n <<= 2
        n |= 1
        n //= 2
        n %= 5
        names = ["a"]
        names += ("b", "c")
        return y, n, names

    return outer, [call(normal(3), 3), call(normal(3), 9)]


@program
def augmented_assignment_to_an_element():
    def outer(x, box):
        box["total"] += x.sum()
        box["list"][0] += 1
        x[0] += 10
        return box["total"] * 2

    return outer, [call(count(3), {"total": 0, "list": [1]}), call(count(3), {"total": torch.ones(()), "list": [5]})]


@program
def all_arithmetic_operators():
    def outer(x, n):
        return x + n, x - n, x * n, x / n, x // n, x % n, x**n, -x, +x, abs(x), n - x, n / x, n**x, n // x, n % x

    return outer, [call(count(3) + 1, 2), call(count(3) + 1, 3.5), call(count(3) + 1, count(3) + 2)]


@program
def integer_and_boolean_operators():
    def outer(x, y, mask):
        return x & y, x | y, x ^ y, ~x, x << 1, x >> 1, mask & (x > y), ~mask, mask ^ True, x == y, x != y, x <= y, x >= y

    return outer, [call(integers(4), integers(4), integers(4) > 5)]


@program
def matrix_multiply_operator():
    def outer(a, b):
        return a @ b, a @ b[:, 0]

    return outer, [call(normal(2, 3), normal(3, 4)), call(normal(5, 3), normal(3, 4))]


@program
def python_number_arithmetic():
    def outer(x, a, b):
        quotient, rest = divmod(a, b)
        return x * (a // b) + a % b, quotient, rest, round(a / b, 2), pow(a, b, 7), abs(-a), int(a / b), float(a), -a // b

    return outer, [call(normal(2), 7, 2), call(normal(2), 9, 4)]


@program
def slices_of_lists():
    def outer(xs, start):
        return xs[start:], xs[:-1], xs[::-1], xs[::2], xs[-1], xs[slice(None, 2)], xs[start : start + 1]

    return outer, [call([normal(1) for _ in range(4)], 1), call([normal(1) for _ in range(3)], -2)]


@program
def slice_assignment_and_deletion():
    def outer(xs, y):
        xs[1:3] = [y]
        del xs[0]
        xs[len(xs) :] = [y + 1]
        return xs

    return outer, [call([normal(1) for _ in range(4)], normal(1)), call([normal(1) for _ in range(2)], normal(1))]


@program(core=True)
def f_strings_with_shapes():
    def outer(x, name):
        label = f"{name!r}:{tuple(x.shape)} {x.dtype} {x.shape[0]:03d} {x.dim() / 3:.2f} {name:>{x.dim() + 4}}"
        return x + 1, label

    return outer, [call(normal(2, 3), "a"), call(normal(4), "bc")]


@program
def percent_and_format_strings():
    def outer(x):
        n = x.numel()
        return x * 2, "%d of %s (%5.1f)" % (n, "x", n / 3), "{:>4}|{name}".format(n, name=str(x.dtype)), "-" * n

    return outer, [call(normal(2)), call(normal(3, 2))]


@program
def string_methods():
    def outer(x, text):
        parts = text.strip().split(",")
        width = max(len(part) for part in parts)
        clean = ["_".join(part.lower().split()) for part in parts if not part.startswith("#")]
        found = text.find("b"), text.count(","), text.replace("a", "x"), text.partition(","), text.encode("utf-8")
        return x * width, clean, found, text.isdigit(), "".join(reversed(text)), text.title().rjust(20, ".")

    return outer, [call(normal(2), " a b,#c,D E"), call(normal(2), "12")]


@program
def bytes_and_bytearray():
    def outer(x, data):
        buffer = bytearray(data)
        buffer[0] = x.shape[0]
        return x + len(data), bytes(buffer), data[1:], data.hex(), int.from_bytes(data[:2], "little")

    return outer, [call(normal(2), b"abc"), call(normal(3), b"\x00\x01")]


@program
def number_methods_and_conversions():
    def outer(x, n, r):
        return x * n.bit_length(), r.is_integer(), int("12", 16), hex(n), bin(n), oct(n), r.hex(), complex(n, r), bool(n)

    return outer, [call(normal(2), 5, 2.0), call(normal(2), 0, 2.5)]


@program
def comparison_of_sequences():
    def outer(x, a, b):
        return x + (a < b), a == b, max(a, b), sorted([a, b]), a <= b <= a + b

    return outer, [call(normal(2), [1, 2], [1, 3]), call(normal(2), (1,), (1,)), call(normal(2), "b", "ab")]


@program(raises=AssertionError)
def assert_with_a_message():
    def outer(x, n):
        assert x.shape[0] == n, f"expected {n} rows, got {x.shape[0]}"
        return x * 2

    return outer, [call(normal(2), 2), call(normal(3), 2)]


@program(raises=AssertionError)
def assert_on_a_tensor():
    def outer(x):
        y = x.sqrt()
        assert (x >= 0).all(), "negative"
        return y

    return outer, [call(count(3)), call(count(3) - 1)]


@program
def early_return_of_constants():
    def outer(x, kind):
        if kind == "none":
            return
        if kind == "number":
            return 3
        if kind == "ellipsis":
            return ...
        return x + 1

    return outer, [call(normal(1), kind) for kind in ("none", "number", "ellipsis", "tensor", "none")]


@program
def pass_and_docstring_only():
    def outer(x):
        """Does nothing."""

    return outer, [call(normal(1))]


@program
def integer_that_varies():
    def outer(x, n):
        return x * n + n**2

    return outer, [call(count(2), n) for n in (1, 2, 3, 0, 10, -4, 2)]


@program
def float_that_varies():
    def outer(x, rate):
        return x - rate * x

    return outer, [call(count(2), rate) for rate in (0.1, 0.2, 0.0, float("inf"), 0.1)]


@program
def argument_that_changes_type():
    def outer(x, n):
        return x * n, type(n).__name__

    return outer, [call(count(2), n) for n in (1, 1.0, True, torch.tensor(1), 1, 2)]


@program
def integer_division_of_shapes():
    def outer(x):
        half = x.shape[-1] // 2
        return torch.cat([-x[..., half:], x[..., :half]], dim=-1), half, x.shape[0] % 2, -(-x.shape[-1] // 3)

    return outer, [call(normal(2, 4)), call(normal(3, 6)), call(normal(2, 5))]
