"""Programs on which a compiler that trusts too much is silently wrong: replaced library functions, bases, caches, `.data`."""

from __future__ import annotations

import collections
import copy
import enum
import functools
import math

import torch

from tests.conformance.catalogue import after, call, count, leaf, program


@program
def override_appears_in_a_nearer_class():
    class Base:
        def f(self, x):
            return x + 1

    class Mid(Base):
        pass

    class Sub(Mid):
        pass

    o = Sub()

    def outer(x):
        return o.f(x)

    return outer, [
        call(count(2)),
        after(lambda: setattr(Mid, "f", lambda self, x: x + 5), count(2)),
        after(lambda: setattr(Sub, "f", lambda self, x: x + 7), count(2)),
        after(lambda: o.__dict__.update(f=lambda x: x + 9), count(2)),
    ]


@program(core=True)
def stdlib_function_replaced():
    def outer(x):
        return x * math.sqrt(4.0) + len(collections.Counter("aab"))

    real = math.sqrt
    return outer, [
        call(count(2)),
        after(lambda: setattr(math, "sqrt", lambda v: 10.0), count(2)),
        after(lambda: setattr(math, "sqrt", real), count(2)),
    ]


@program
def torch_function_replaced():
    def outer(x):
        return torch.nn.functional.relu(x)

    real = torch.nn.functional.relu
    return outer, [
        call(count(2) - 1),
        after(lambda: setattr(torch.nn.functional, "relu", lambda v: v * 10.0), count(2) - 1),
        after(lambda: setattr(torch.nn.functional, "relu", real), count(2) - 1),
    ]


@program
def torch_function_that_is_called_by_its_replacement():
    real = torch.tanh

    def outer(x):
        return torch.tanh(x), real(x)

    return outer, [
        call(leaf(2)),
        after(lambda: setattr(torch, "tanh", lambda v: real(v) * 2), leaf(2)),
        call(leaf(3)),
        after(lambda: setattr(torch, "tanh", real), leaf(2)),
    ]


@program
def torch_module_method_replaced():
    m = torch.nn.Linear(2, 2)
    real = torch.nn.Linear.forward

    def outer(x):
        return m(x)

    return outer, [
        call(count(2) - 1),
        after(lambda: setattr(torch.nn.Linear, "forward", lambda self, v: v * 10.0), count(2) - 1),
        after(lambda: setattr(torch.nn.Linear, "forward", real), count(2) - 1),
    ]


@program
def lru_cache_identity():
    seen = []

    @functools.lru_cache
    def make(n):
        seen.append(n)
        return torch.ones(n)

    def outer(x):
        a = make(3)
        b = make(3)
        return x + a, a is b, make(3)

    return outer, [call(count(3)), call(count(3))], (seen,)


@program
def data_inplace_backward():
    def outer(x):
        y = (x * x).sum()
        x.data.add_(1)
        return y

    return outer, [call(leaf(3)), call(leaf(3))]


@program
def data_alias_version():
    def outer(x):
        d = x.data
        v = x._version
        d.add_(1)
        return d, x._version == v, d.data_ptr() == x.data_ptr()

    return outer, [call(count(3)), call(leaf(3))]


@program
def data_returned_then_changed():
    def outer(x):
        return x.data

    def both(x):
        d = outer(x)
        d.mul_(2)
        return d, x + 1

    return both, [call(leaf(3)), call(count(3))]


@program
def data_then_change():
    def outer(x):
        d = x.data
        x.add_(1)
        return d * 2, x

    return outer, [call(count(3)), call(count(3))]


@program
def data_view_change():
    def outer(x):
        h = x * 2
        d = h.data
        d[0].add_(1)
        e = h * 3
        return e, d

    return outer, [call(count(3)), call(leaf(3))]


@program
def moving_average_of_parameters():
    m = torch.nn.Linear(2, 2)
    e = torch.nn.Linear(2, 2)

    def outer(x):
        for p, q in zip(m.parameters(), e.parameters()):
            q.data.mul_(0.9).add_(p.data, alpha=0.1)
        return e(x)

    return outer, [call(count(2)), call(count(2))], e


@program
def data_overwritten():
    m = torch.nn.Linear(2, 2)

    def outer(x):
        m.weight.data.copy_(x)
        m.weight.data[0] = 5
        return m(x)

    return outer, [call(count(2, 2)), call(count(2, 2))], m


@program
def data_replaced():
    def outer(x, y):
        x.data = y * 2
        return x * 3

    return outer, [call(leaf(3), count(3)), call(count(3), count(3))]


@program
def output_of_two_aliasing_inputs():
    base = count(6)

    def outer(a, b):
        return a.view(-1), b[1:], a + b

    return outer, [call(base[:3], base[3:]), call(base[:3], base[1:4]), call(base[:3], base[:3])]


@program
def mutate_overlapping():
    base = count(6)

    def outer(a, b):
        a.add_(1)
        return a * b

    return outer, [
        call(base[:3], base[3:]),
        call(base[:3], base[1:4]),
        call(base[:3], base[:3]),
        call(count(3), count(3)),
    ]


@program
def closure_tensor_mutated_alias():
    t = count(4)
    v = t[1:]

    def outer(x):
        t.add_(x)
        return v * 2

    return outer, [call(1.0), call(2.0)], (t, v)


@program
def buffer_alias_of_input():
    m = torch.nn.Module()
    m.register_buffer("b", count(3))

    def outer(x):
        m.b.add_(1)
        return x * m.b

    return outer, [call(count(3)), call(m.b), call(m.b.view(3))], m.b


@program
def method_after_new_bases():
    class A:
        def f(self, x):
            return x + 1

    class B:
        def f(self, x):
            return x + 2

    class C(A):
        pass

    o = C()

    def outer(x):
        return o.f(x)

    return outer, [call(count(2)), after(lambda: setattr(C, "__bases__", (B,)), count(2))]


@program
def instance_check_after_new_bases():
    class A:
        pass

    class B:
        pass

    class C(A):
        pass

    o = C()

    def outer(x):
        return x + 1 if isinstance(o, A) else x - 1

    return outer, [call(count(2)), after(lambda: setattr(C, "__bases__", (B,)), count(2))]


@program
def equality_appears_on_the_class():
    class A:
        pass

    a, b = A(), A()

    def outer(x):
        return x + 1 if a == b else x - 1

    return outer, [call(count(2)), after(lambda: setattr(A, "__eq__", lambda s, o: True), count(2))]


@program
def truth_appears_on_the_class():
    class A:
        pass

    a = A()

    def outer(x):
        return x + 1 if a else x - 1

    return outer, [call(count(2)), after(lambda: setattr(A, "__bool__", lambda s: False), count(2))]


@program
def getattr_appears_on_the_class():
    class A:
        pass

    a = A()

    def outer(x):
        return x + getattr(a, "k", 3)

    return outer, [call(count(2)), after(lambda: setattr(A, "__getattr__", lambda s, n: 8), count(2))]


@program
def setattr_appears_on_the_class():
    log = []

    class A:
        def __init__(self):
            self.k = 1

    a = A()

    def outer(x):
        a.k = x
        return x + 1

    return (
        outer,
        [call(count(2)), after(lambda: setattr(A, "__setattr__", lambda s, n, v: log.append(n)), count(2))],
        (log, a),
    )


@program(backward=False)
def gradient_kept_of_an_intermediate_after_its_use():
    def outer(x):
        h = x * 2
        y = (h * 3).sum()
        h.retain_grad()
        y.backward()
        return h.grad, y

    return outer, [call(leaf(3)), call(leaf(3))]


@program(backward=False)
def hook_on_an_intermediate_after_its_use():
    log = []

    def outer(x):
        h = x * 2
        y = (h * 3).sum()
        h.register_hook(lambda g: log.append(g.sum().item()))
        y.backward()
        return y

    return outer, [call(leaf(3)), call(leaf(3))], log


@program
def extend_a_deque_on_the_left():
    def outer(x, d):
        d.extendleft([x, x + 1])
        d.extend([x * 2])
        return d

    return outer, [call(count(2), collections.deque([1]))] * 2


@program
def classes_named_like_generated_arguments():
    class E(enum.IntEnum):
        A = 1
        B = 2

    class F(enum.Flag):
        X = 1
        Y = 2

    def outer(x, e, f):
        return x * e + (1 if f & F.X else 2), e.name, F.X | f, E(2)

    return outer, [call(count(2), E.A, F.X), call(count(2), E.B, F.Y)]


@program
def list_with_its_own_length():
    class L(list):
        def __getitem__(self, i):
            return 100

        def __len__(self):
            return 1

    l = L([1, 2, 3])

    def outer(x):
        return x + l[0] + len(l) + sum(l) + (1 if l else 0)

    return outer, [call(count(2)), after(lambda: l.append(5), count(2))]


@program
def dict_with_its_own_lookup():
    class D(dict):
        def __getitem__(self, k):
            return super().__getitem__(k) + 1

        def __contains__(self, k):
            return True

    d = D(a=1)

    def outer(x):
        return x + d["a"] + ("q" in d) + d.get("a")

    return outer, [call(count(2)), after(lambda: d.update(a=4), count(2))]


@program
def objects_copied():
    class A:
        def __init__(self):
            self.a = [1]
            self.b = count(2)

    o = A()

    def outer(x):
        c = copy.copy(o)
        c.q = x
        d = copy.deepcopy(o)
        return c, c.a is o.a, d.a is o.a

    return outer, [call(count(2))], o


@program
def defaults_and_code_of_a_callee_replaced():
    def f(x, k=2, *, j=3):
        return x * k + j

    def outer(x):
        return f(x)

    return outer, [
        call(count(2)),
        after(lambda: setattr(f, "__defaults__", (5,)), count(2)),
        after(lambda: f.__kwdefaults__.update(j=7), count(2)),
        after(lambda: setattr(f, "__code__", (lambda x, k=2, *, j=3: x - k).__code__), count(2)),
    ]


@program
def code_of_the_entry_replaced():
    def outer(x):
        return x + 1

    return outer, [call(count(2)), after(lambda: setattr(outer, "__code__", (lambda x: x - 5).__code__), count(2))]


@program
def class_of_an_object_replaced():
    class A:
        k = 1

        def f(self, x):
            return x + self.k

    class B(A):
        k = 2

    o = A()

    def outer(x):
        return o.f(x)

    return outer, [
        call(count(2)),
        after(lambda: setattr(o, "__class__", B), count(2)),
        after(lambda: setattr(B, "k", 9), count(2)),
    ]


@program
def variables_named_like_generated_outputs():
    def outer(x, item):
        output_0 = x + 1
        print(item)
        return output_0 * 2, output_0, x.sum()

    return outer, [call(count(2), 5), call(count(2), 6)]


@program
def a_tensor_called_self():
    def outer(self, other):
        print("between")
        return self * 2 + other

    return outer, [call(count(2), 5.0), call(count(3), 5.0)]
