"""Programs about calling: every kind of parameter and argument, closures, decorators, recursion, lambdas."""

from __future__ import annotations

import functools

import torch

from tests.conformance.catalogue import after, call, count, normal, positive, program

SCALE = 2.0


@program(core=True)
def keyword_only_parameters():
    def affine(x, *, scale, shift=1.0):
        return x * scale + shift

    return affine, [call(normal(3), scale=2.0), call(normal(3), scale=3.0, shift=0.5), call(normal(3), shift=0, scale=1)]


@program
def positional_only_parameters():
    def fma(a, b, /, c=0.0):
        return a * b + c

    return fma, [call(normal(3), normal(3)), call(normal(3), normal(3), 2.0), call(normal(3), normal(3), c=normal(3))]


@program
def positional_only_name_reused_as_keyword():
    def tagged(x, /, **options):
        return x + options["x"], sorted(options)

    return tagged, [call(normal(2), x=1.0), call(normal(2), x=2.0, y=5)]


@program(core=True)
def star_args_of_changing_length():
    def total(first, *rest):
        for tensor in rest:
            first = first + tensor
        return first, len(rest)

    return total, [call(*[normal(2) for _ in range(n)]) for n in (1, 3, 4, 1)]


@program
def star_star_kwargs_with_changing_keys():
    def weighted(x, **weights):
        result = torch.zeros_like(x)
        for name, weight in weights.items():
            result = result + x * weight
        return result, tuple(weights)

    return weighted, [call(normal(2), a=1.0), call(normal(2), b=1.0, a=2.0), call(normal(2), a=2.0, b=1.0)]


@program
def defaults_computed_at_definition():
    bias = normal(3)

    def shifted(x, b=bias, factor=len("four")):
        return (x + b) * factor

    return shifted, [call(normal(3)), call(normal(3), normal(3)), call(normal(3), factor=2)]


@program(core=True)
def mutated_default_argument():
    def remember(x, seen=[]):
        seen.append(x.sum())
        return torch.stack(seen)

    return remember, [call(normal(2)), call(normal(2)), call(normal(2), []), call(normal(2))]


@program
def default_replaced_between_calls():
    def scaled(x, factor=2.0):
        return x * factor

    def replace():
        scaled.__defaults__ = (5.0,)

    return scaled, [call(count(3)), after(replace, count(3))]


@program
def keyword_default_replaced_between_calls():
    def scaled(x, *, factor=2.0):
        return x * factor

    return scaled, [call(count(3)), after(lambda: scaled.__kwdefaults__.update(factor=-1.0), count(3))]


@program
def unpacked_arguments_at_the_call_site():
    def inner(a, b, c=1.0, *, d=2.0):
        return a * b + c * d

    def outer(pair, options):
        return inner(*pair, **options), inner(*pair, 3.0, **{"d": 4.0})

    return outer, [
        call((normal(2), normal(2)), {"c": 2.0}),
        call([normal(2), normal(2)], {"d": 7.0}),
        call([normal(2), normal(2)], {}),
    ]


@program
def several_unpackings_in_one_call():
    def join(*tensors, **named):
        return torch.cat([*tensors, *named.values()])

    def outer(first, second, more):
        return join(*first, *second, **more, last=count(1))

    return outer, [call([normal(1)], (normal(2), normal(3)), {"a": normal(1)}), call([], (normal(2),), {})]


@program(raises=TypeError)
def missing_argument():
    def inner(a, b, *, c):
        return a + b + c

    def outer(x, complete):
        if complete:
            return inner(x, x, c=x)
        return inner(x, c=x)

    return outer, [call(normal(2), True), call(normal(2), False)]


@program(raises=TypeError)
def unexpected_keyword():
    def inner(a, scale=1.0):
        return a * scale

    def outer(x, **options):
        return inner(x, **options)

    return outer, [call(normal(2), scale=2.0), call(normal(2), sclae=2.0)]


@program(raises=TypeError)
def keyword_given_twice():
    def inner(a, **options):
        return a + options.get("b", 0)

    def outer(x, extra):
        return inner(x, b=1, **extra)

    return outer, [call(normal(2), {"c": 1}), call(normal(2), {"b": 1})]


@program(raises=TypeError)
def too_many_arguments_to_the_entry():
    def pair(a, b):
        return a + b

    return pair, [call(normal(2), normal(2)), call(normal(2), normal(2), normal(2))]


@program(core=True)
def closure_over_a_tensor():
    weight = torch.randn(3, requires_grad=True)

    def scaled(x):
        return x * weight

    return scaled, [call(normal(3)), call(normal(2, 3))], weight


@program(core=True)
def closure_cell_changed_between_calls():
    scale = 1.0

    def scaled(x):
        return x * scale

    def change(value):
        nonlocal scale
        scale = value

    return scaled, [
        call(count(3)),
        after(lambda: change(4.0), count(3)),
        after(lambda: change(count(3)), count(3)),
        after(lambda: change(1.0), count(3)),
    ]


@program(core=True)
def nonlocal_counter():
    calls = 0

    def counted(x):
        nonlocal calls
        calls += 1
        return x + 1, calls

    return counted, [call(normal(2)) for _ in range(4)]


@program
def nonlocal_counter_in_an_inner_function():
    def outer(x, times):
        steps = 0

        def step(value):
            nonlocal steps
            steps += 1
            return value * 2 + steps

        for _ in range(times):
            x = step(x)
        return x, steps

    return outer, [call(normal(2), 2), call(normal(2), 3)]


@program
def closure_made_and_returned():
    def make(x):
        doubled = x * 2

        def add(y):
            return doubled + y

        return add(x), add

    def outer(x):
        value, add = make(x)
        return value, add(1.0)

    return outer, [call(normal(3)), call(normal(4))]


@program
def returned_closure_called_by_the_caller():
    def make(x):
        doubled = x * 2
        return lambda y: doubled + y

    results = []

    def run(x):
        results.append(make(x))
        return x

    return run, [call(count(3)), after(lambda: results.append(results[0](count(3))), count(3))], results


@program
def late_binding_of_loop_variables():
    def outer(x):
        functions = [lambda y: y * i for i in range(3)]
        return [function(x) for function in functions]

    return outer, [call(count(2))]


@program
def early_binding_through_defaults():
    def outer(x, n):
        functions = [lambda y, i=i: y * i for i in range(n)]
        return [function(x) for function in functions]

    return outer, [call(count(2), 3), call(count(2), 2)]


@program(core=True)
def global_read():
    def scaled(x):
        return x * SCALE

    def change(value):
        globals()["SCALE"] = value

    change(2.0)
    return scaled, [call(count(2)), after(lambda: change(3.0), count(2)), after(lambda: change(2), count(2))]


@program
def global_written():
    globals()["WRITTEN"] = 0

    def accumulate(x, by):
        global WRITTEN
        WRITTEN += by
        return x + WRITTEN

    return accumulate, [call(normal(2), 1), call(normal(2), 1), call(normal(2), 2)]


@program
def global_tensor_written_and_deleted():
    globals().pop("LATEST", None)

    def keep(x, forget):
        global LATEST
        LATEST = x * 2
        value = LATEST + 1
        if forget:
            del LATEST
        return value

    return keep, [call(normal(2), False), call(normal(2), True), call(normal(2), False)]


@program(raises=NameError)
def global_that_does_not_exist():
    def broken(x):
        y = x + 1
        return y + NOT_DEFINED_ANYWHERE

    return broken, [call(normal(2))]


@program(raises=UnboundLocalError)
def local_used_before_assignment():
    def broken(x, assign):
        if assign:
            y = x + 1
        return y

    return broken, [call(normal(2), True), call(normal(2), False)]


@program
def local_deleted_and_bound_again():
    def outer(x):
        y = x * 2
        z = y + 1
        del y
        y = z * 3
        return y

    return outer, [call(normal(2))]


@program(core=True)
def recursion_on_an_integer():
    def power(x, n):
        if n == 0:
            return torch.ones_like(x)
        return x * power(x, n - 1)

    return power, [call(positive(2), 3), call(positive(2), 5)]


@program
def recursion_over_a_nested_list():
    def total(tree):
        if isinstance(tree, torch.Tensor):
            return tree.sum()
        return sum(total(branch) for branch in tree)

    return total, [call([normal(2), [normal(3), [normal(1)]]]), call([normal(2), normal(2)])]


@program
def mutual_recursion():
    def even(x, n):
        return x if n == 0 else odd(x + 1, n - 1)

    def odd(x, n):
        return -x if n == 0 else even(x * 2, n - 1)

    return even, [call(count(2), 4), call(count(2), 3)]


@program
def decorator_that_wraps():
    def twice(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs) + function(*args, **kwargs)

        return wrapper

    @twice
    def squared(x, offset=0):
        """Square."""
        return x * x + offset

    def outer(x):
        return squared(x, offset=1), squared.__name__, squared.__doc__

    return outer, [call(normal(2))]


@program
def decorator_with_arguments_as_entry():
    def scaled_by(factor):
        def decorate(function):
            def wrapper(x):
                return function(x) * factor

            return wrapper

        return decorate

    @scaled_by(2.0)
    @scaled_by(3.0)
    def shifted(x):
        return x + 1

    return shifted, [call(count(3)), call(count(4))]


@program
def decorator_that_counts_calls():
    def counted(function):
        def wrapper(x):
            wrapper.calls += 1
            return function(x)

        wrapper.calls = 0
        return wrapper

    @counted
    def doubled(x):
        return x * 2

    def outer(x):
        return doubled(doubled(x)), doubled.calls

    return outer, [call(normal(2)), call(normal(2))]


@program
def functools_partial_called():
    def fma(a, b, c):
        return a * b + c

    half = functools.partial(fma, b=0.5)

    def outer(x):
        return half(x, c=1.0), functools.partial(half, c=x)(x)

    return outer, [call(normal(2)), call(normal(3))]


@program
def functools_partial_as_entry():
    def fma(a, b, c=0.0):
        return a * b + c

    return functools.partial(fma, normal(3), c=1.0), [call(normal(3)), call(normal(3), c=2.0)]


@program
def lambda_as_entry():
    return lambda x, y=2.0: torch.relu(x) * y, [call(normal(3)), call(normal(3), 3.0)]


@program
def lambda_immediately_called():
    def outer(x):
        return (lambda a, *rest, b: a + b + sum(rest))(x, 1.0, 2.0, b=x)

    return outer, [call(normal(2))]


@program
def function_attribute_as_constant():
    def scaled(x):
        return x * scaled.factor

    scaled.factor = 2.0

    def change():
        scaled.factor = 3.0

    return scaled, [call(count(2)), after(change, count(2))]


@program
def function_passed_as_argument():
    def apply(function, x):
        return function(x)

    def double(x):
        return x * 2

    return apply, [call(torch.relu, normal(3)), call(double, normal(3)), call(torch.relu, normal(3))]


@program
def functions_in_a_table():
    table = {"relu": torch.relu, "tanh": torch.tanh, "square": lambda x: x * x}

    def apply(name, x):
        return table[name](x)

    return apply, [call("relu", normal(3)), call("square", normal(3)), call("tanh", normal(3)), call("relu", normal(3))]


@program
def star_unpacking_in_a_return():
    def outer(xs, y):
        return (*xs, y, *[y + 1])

    return outer, [call([normal(1)], normal(1)), call([normal(1), normal(2)], normal(1))]


@program
def annotations_do_not_matter():
    def outer(x: torch.Tensor, n: int = 2) -> torch.Tensor:
        y: torch.Tensor = x * n
        z: torch.Tensor
        z = y + 1
        return z

    return outer, [call(normal(2)), call(normal(2), 3)]


@program
def function_replaced_between_calls():
    functions = {"step": lambda x: x + 1}

    def outer(x):
        return functions["step"](x)

    return outer, [call(count(2)), after(lambda: functions.update(step=lambda x: x * 5), count(2))]


@program
def code_object_replaced_between_calls():
    def inner(x):
        return x + 1

    def other(x):
        return x - 1

    def outer(x):
        return inner(x)

    def replace():
        inner.__code__ = other.__code__

    return outer, [call(count(2)), after(replace, count(2))]


@program
def method_bound_early():
    def outer(x):
        add, view = x.add, x.view
        return add(1), view(-1)

    return outer, [call(normal(2, 2)), call(normal(3, 2))]


@program
def unbound_tensor_method():
    def outer(x):
        return torch.Tensor.add(x, 1), list(map(torch.Tensor.relu, [x, -x]))

    return outer, [call(normal(3))]
