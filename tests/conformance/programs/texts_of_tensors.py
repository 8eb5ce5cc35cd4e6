"""f-strings that show tensors: as messages of checks that pass, and where somebody needs the text."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.conformance.catalogue import call, count, leaf, normal, program, under


def check(condition, message, kind=ValueError):
    if not condition:
        raise kind(message)


class Shown:
    def __init__(self, x):
        self.x = x

    def __repr__(self):
        return f"Shown({self.x})"

    def __str__(self):
        return f"{self.x:.2f}"

    def __format__(self, form):
        return f"<{self.x}>"


@program(core=True)
def messages_of_checks_that_pass():
    def outer(x):
        y = x.exp()
        check(x.dim() == 1, f"{y.sum()} {x.shape} {y.mean():.3f}")
        check((y > 0).all(), f"not positive: {y}")
        return y * 2

    return outer, [call(normal(3)), call(normal(4))]


@program(raises=ValueError)
def messages_of_checks_of_torch():
    def outer(x):
        torch._check(x.dim() == 1, lambda: f"not a vector: {x}")
        torch._check_value(x.shape[0] < 4, lambda: f"too long: {x.shape[0]} {x.sum():.1f}")
        torch._check_tensor_all(x > -100, lambda: f"{x}")
        torch._check_index(x.is_floating_point())
        return x * 2

    return outer, [call(count(2)), call(count(3)), call(count(4)), call(count(3))]


@program(raises=TypeError)
def a_check_of_numbers_that_are_no_truths():
    def outer(x):
        torch._check_tensor_all(x)
        return x * 2

    return outer, [call(count(2))]


@program
def a_check_that_fails_and_is_caught():
    def outer(x):
        try:
            torch._check_index(x.shape[0] < 3, lambda: "long")
        except IndexError as error:
            return x - 1, str(error)
        return x * 2

    return outer, [call(count(2)), call(count(3)), call(count(4))]


@program
def texts_of_objects_that_hold_tensors():
    def outer(x):
        p = Shown(x.sum())
        a, b, c = repr(p), str(p), f"{p} {p!r}"
        return x + len(a), a, b, c

    return outer, [call(normal(3)), call(normal(4))]


@program
def texts_returned():
    def outer(x):
        return f"{x} and {x.sum():>10.3f}", x.sin()

    return outer, [call(normal(3)), call(normal(4))]


@program
def texts_of_changed_tensor():
    def outer(x):
        y = x * 2
        t = f"{y}"
        y.add_(1)
        return y, t

    return outer, [call(normal(3)), call(normal(4))]


@program
def texts_of_view_changed():
    def outer(x):
        y = x.clone()
        v = y[0]
        t = f"{v}"
        y[0] = 5.0
        print(t, f"{v}")
        return y

    return outer, [call(normal(3)), call(normal(4))]


@program
def texts_in_list_and_dict():
    log = []
    d = {}

    class C:
        pass

    c = C()

    def outer(x):
        t = f"{x.mean():.4f}"
        log.append(t)
        d[t] = 1
        d["k"] = t
        c.t = t
        return x * len(t), t == d["k"], t + "!", t in log

    return outer, [call(normal(3)), call(normal(4))], (log, d, vars(c))


@program
def texts_as_argument_of_many():
    def g(m):
        return (
            isinstance(m, str),
            callable(m),
            type(m) is str,
            bool(m),
            m is None,
            m.upper(),
            m[0],
            hash(m) == hash(str(m)),
        )

    def outer(x):
        return x.sin(), g(f"a{x}")

    return outer, [call(normal(3)), call(normal(4))]


@program
def texts_via_callbacks():
    def outer(x):
        ts = list(map(lambda t: f"{t:.3f}", [x.sum(), x.mean()]))
        return (
            x + 1,
            ts,
            ", ".join(f"{t:.2f}" for t in (x.min(), x.max())),
            {f"{k}": v for k, v in [("a", x)]},
            [f"{v:.1f}" for v in (x[0], x[1])],
        )

    return outer, [call(normal(3)), call(normal(4))]


@program
def texts_in_closure_and_default():
    def outer(x):
        m = f"v {x.sum()}"

        def g(a=m, *b, **k):
            return m, a, b, k

        return x + 1, g(), g(m, m, z=m)

    return outer, [call(normal(3)), call(normal(4))]


@program(raises=ValueError)
def texts_raised():
    def outer(x):
        if x.shape[0] > 3:
            raise ValueError(f"bad {x.sum():.3f} {x}")
        return x + 1

    return outer, [call(count(3)), call(count(4))]


@program(raises=TypeError)
def a_tensor_refuses_a_form():
    def outer(x):
        m = f"{x:.3f}"
        return x + 1

    return outer, [call(count(3)), call(count(4))]


@program
def many_forms_of_numbers():
    def outer(x):
        return (
            x + 1,
            f"{x.argmax():.2f} {(x.sum() > 0):.1f} {x.argmax():5d} {x.sum():8} {x.sum():,.2f} {x.sum():e} {x.double().mean():.10f} {x.half().sum():.3f} {x.sum():%}",
        )

    return outer, [call(count(3)), call(count(4))]


@program
def texts_no_grad_and_modes():
    def outer(x):
        with torch.no_grad():
            t = f"{x * 2}"
        return x + 1, t

    return outer, [
        call(normal(2, 2)),
        under(torch.inference_mode, normal(3, 2)),
        under(torch.no_grad, leaf(2)),
    ]


@program
def texts_in_loop_with_break():
    def outer(x):
        out = []
        for i in range(3):
            x = x * 2
            m = f"step {i}: {x.sum():.2f}"
            out.append(m)
            if i == 1:
                print(m)
        return x, out

    return outer, [call(normal(3)), call(normal(4))]


@program
def texts_across_break():
    def outer(x):
        m = f"{x.sum():.2f}"
        print("b")
        y = x + 1
        print(m)
        return y, m

    return outer, [call(normal(3)), call(normal(4))]


@program
def texts_generator():
    def gen(x):
        for i in range(3):
            yield f"{x[i]:.2f}"

    def outer(x):
        ts = []
        for t in gen(x):
            ts.append(t)
        return x + 1, ts, [*gen(x)]

    return outer, [call(normal(3)), call(normal(4))]


@program
def texts_match_and_compare():
    def outer(x):
        t = f"{x.sum() > 0}"
        match t:
            case "True":
                y = x + 1
            case _:
                y = x - 1
        return y if t != "True" else y * 2

    return outer, [call(count(3)), call(-count(4))]


@program
def texts_attr_of_module_repr():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.last = ""

        def extra_repr(self):
            return f"w={self.layer.weight.sum():.3f}"

        def forward(self, x):
            y = self.layer(x)
            self.last = f"{y.mean():.3f}"
            return y

    m = M()
    return m, [call(normal(2, 2)), call(normal(3, 2))], None


@program
def texts_nested():
    def outer(x):
        w = 3
        a = f"{x.sum():.{w}f}"
        b = f"[{a}]"
        c = f"{a:>20}|{b!r}"
        return x + 1, a, b, c

    return outer, [call(normal(2, 2)), call(normal(3, 2))]


@program
def texts_checkpoint():
    def inner(x):
        m = f"{x}"
        return x.sin()

    def outer(x):
        return checkpoint(inner, x, use_reentrant=False)

    return outer, [call(leaf(2, 2)), call(leaf(3, 2))]


@program
def texts_of_a_tensor_written_through_its_data():
    def outer(x):
        y = x * 2
        text = f"{y}"
        y.data.add_(1)
        print(text)
        return y

    return outer, [call(normal(3)), call(normal(4))]


@program(raises=TypeError)
def a_check_of_a_tensor_that_takes_a_truth():
    def outer(x):
        torch._check(x.sum() > 0, lambda: f"{x}")
        return x * 2

    return outer, [call(count(2))]


@program
def one_tensor_filled_in_by_percent():
    def outer(x):
        text = "sum %s" % x.sum()
        text += "; %r" % (x + 1)
        refused = []
        for make in (lambda: b"%s" % x, lambda: "a" + x, lambda: x % "a", lambda: "%d" % x):
            try:
                refused.append(make())
            except (TypeError, ValueError) as error:
                refused.append(str(error))
        return x * 2, text, refused, "ab" * x.long().sum()

    return outer, [call(count(3)), call(count(3) + 1), call(count(2))]
