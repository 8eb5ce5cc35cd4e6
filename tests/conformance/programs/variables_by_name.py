"""Programs that read their variables by name (`eval`, `locals`, `vars`, `dir`), also where the graph breaks, and variables that
are called what capture might call its own.
"""

from __future__ import annotations

import torch

from tests.conformance.catalogue import after, call, leaf, normal, program


@program(core=True)
def layers_found_by_eval():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer1, self.layer2, self.count = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), 2

        def forward(self, x):
            for i in range(1, self.count + 1):
                x = eval(f"self.layer{i}")(x)
                x = eval(" x * i")
            return x

    net = Net()
    fewer, another = (lambda: setattr(net, "count", 1)), lambda: setattr(net, "layer1", torch.nn.Linear(2, 2))
    return net, [call(normal(2, 2)), call(normal(3, 2)), after(fewer, normal(2, 2)), after(another, normal(2, 2))]


@program(raises=AttributeError)
def eval_beside_prints():
    def f(x, name):
        print("before")
        y = eval("x." + name)
        print("after", eval("len(name)"), eval("[k for k in range(3)]"), eval("(lambda q: q + 1)(2)"))
        shape = y.shape
        return eval("y + 1 if name == 'real' else y"), shape

    return f, [call(normal(2), "real"), call(normal(2, 2), "T"), call(normal(2), "other"), call(normal(2), "real")]


@program(raises=NameError)
def eval_of_given_texts():
    def f(x, text):
        z = 3
        return eval(text), z

    texts = ("x * z", "x * w", "(z := 4) * x", "torch.sin(x)", " x\n", b"x", "[x, z]")
    return f, [call(normal(2), text) for text in texts]


@program(raises=SyntaxError)
def eval_of_what_is_no_expression():
    def f(x, text):
        return eval(text)

    return f, [call(normal(2), "x"), call(normal(2), "x +"), call(normal(2), "x = 3")]


@program
def eval_sees_closures_and_other_namespaces():
    scale, seen = 2.0, []

    def f(x, n):
        def inner(y):
            seen.append(n)
            return eval("y * n * 2"), eval("scale * y", {"scale": 3.0, "y": y})

        return inner(x), eval("seen[-1]"), scale, "seen" in eval("locals()"), seen

    return f, [call(normal(2), 2), call(normal(2), 3), call(normal(2), 2)]


@program
def all_variables_after_breaks():
    def f(x, scale=2.0):
        first, unused = 1, "text"
        y = x * scale
        for i in range(2):
            print("turn", i)
        del first
        return y, list(vars()), dir(), {name: value for name, value in locals().items() if name != "y"}

    return f, [call(normal(2)), call(normal(2), 3.0), call(normal(2))]


@program
def all_variables_inside_of_blocks():
    def f(x, a, b):
        def inner():
            return b

        total = a + b
        for i in range(2):
            with torch.no_grad():
                print(i)
                x = x + total
                try:
                    if x.sum() > 0:
                        raise ValueError("positive")
                    print(sorted(locals()))
                except ValueError:
                    print(sorted(locals()), eval("a + total"))
        print(list(locals()), list(vars()), dir())
        exec("q = total + 1")
        return x, inner(), eval("a + b")

    return f, [call(torch.ones(2), 1, 2), call(-torch.ones(2) * 100, 3, 2), call(torch.ones(2), 1, 2)]


@program
def variables_called_as_capture_might():
    def f(x):
        stack_0 = x + 1
        raised_ = x * 3
        first_argument_ = 2
        out = []
        for stack_1 in range(3):
            print("turn", stack_1)
            out.append(stack_0 * stack_1 + first_argument_)
            try:
                print("raise")
                raise ValueError
            except ValueError:
                out.append(raised_)
        return out, stack_0

    return f, [call(normal(2)), call(normal(2)), call(normal(2))]


@program
def blocks_where_gradients_are_off():
    def f(x, blocks):
        with torch.no_grad():
            y = x + 1
            print("cut")
            z = y * len(blocks)
        return z, blocks, y

    return f, [call(leaf(2), [1, 2]), call(leaf(2), [1]), call(leaf(2), [1, 2])]


@program(raises=AssertionError)
def before_an_assertion():
    def f(x, before, log):
        log.append(1)
        assert x.sum() > 0, "negative"
        return x + torch.rand(2), before, log

    return f, [call(torch.ones(2), [1], []), call(-torch.ones(2), [1], []), call(torch.ones(2), [2], [])]


@program
def keywords_called_self_and_function():
    def helper(*, self, function=None, args=(), kwargs=None, error=1, tracer=2):
        print("helper")
        return self * 2 + error + tracer

    def f(self, function, args, kwargs):
        y = self + 1
        z = helper(self=y, function=function, args=args, kwargs=kwargs, error=2)
        return z * function, args, kwargs, list(map(lambda q: helper(self=q, kwargs=1), [y]))

    return f, [call(self=normal(2), function=2, args=(1,), kwargs={}), call(normal(2), function=2, args=(), kwargs={"a": 1})]


@program(core=True)
def all_variables_without_a_break():
    class Settings:
        def __init__(self, rate, scale=2, *rest, **options):
            kind = "made"
            self.__dict__.update(locals())
            del self.self

    def f(x, unused=3):
        y, name = x + 1, "y"
        settings = Settings(0.5, 3, 4, depth=2)
        kept = {key: value for key, value in locals().items() if key not in ("x", "settings")}
        text = "{name} {unused}".format(**vars())
        return kept, text, locals()[name] * settings.scale, vars(settings), list(dict(locals()))

    return f, [call(normal(2)), call(normal(3)), call(normal(2), unused=4)]


@program
def all_variables_of_closures_and_generators():
    def outer(x, shared, plain=1):
        late = 5

        def inner(y):
            nonlocal late
            before = sorted(locals())
            late = shared + y
            del y
            return before, locals()

        before = list(locals())
        found = inner(x)
        try:
            raise ValueError(1)
        except ValueError as error:
            during = sorted(locals())
        pairs = list((key, sorted(locals())) for key in "ab")
        return before, found, during, pairs, list(locals()), [sorted(locals()) for k in "a"]

    return outer, [call(normal(2), 2), call(normal(3), 3)]


@program
def the_dictionary_of_all_variables_is_asked_for_again():
    def f(x):
        first = locals()
        first["added"] = first["x"] = 1
        second = locals()
        y = x + 1
        del x
        third = locals()
        return first is second, sorted(first), sorted(third), third.get("added"), third["first"] is first, third["y"] * 2

    return f, [call(normal(2)), call(normal(3))]


@program
def all_variables_before_and_after_a_break():
    def f(x):
        y = x + 1
        first = dict(locals())
        print(first["y"].sum().item())
        z = y * 2
        return first, z

    def g(x):
        first = locals()
        first["more"] = x * 2
        print(x.sum().item())
        second = locals()
        return first is second, sorted(second), first["more"]

    def both(x):
        return f(x), g(x)

    return both, [call(normal(2)), call(normal(3))]


@program
def all_variables_asked_for_by_eval():
    def f(x):
        y = x + 1
        return sorted(eval("locals()")), y

    return f, [call(normal(2)), call(normal(3))]
