"""Programs about `try`, `raise`, `finally`, `with` and context managers."""

from __future__ import annotations

import contextlib

import torch

from tests.conformance.catalogue import call, count, leaf, normal, program, under


@program(core=True)
def raised_and_caught_in_the_frame():
    def outer(x, bad):
        try:
            y = x + 1
            if bad:
                raise ValueError("bad", 3)
            y = y * 2
        except ValueError as error:
            return y, error.args
        return y

    return outer, [call(normal(2), False), call(normal(2), True)]


@program
def every_clause_of_try():
    def outer(x, kind):
        log = []
        try:
            log.append("try")
            if kind == "value":
                raise ValueError("v")
            if kind == "key":
                {}["missing"]
            if kind == "return":
                return x, log
        except (TypeError, ValueError) as error:
            log.append(str(error))
        except KeyError as error:
            log.append(repr(error))
        else:
            log.append("else")
        finally:
            log.append("finally")
        return x + len(log), log

    return outer, [call(count(2), kind) for kind in ("none", "value", "key", "return")]


@program(core=True, raises=ValueError)
def exception_leaves_the_frame():
    def check(x, limit):
        if x.shape[0] > limit:
            raise ValueError(f"{x.shape[0]} rows, at most {limit}")
        return x

    def outer(x, limit):
        y = x * 2
        return check(y, limit) + 1

    return outer, [call(normal(2), 3), call(normal(4), 3)]


@program(core=True, raises=RuntimeError)
def exception_after_a_mutation():
    def outer(x, log, fail):
        log.append("before")
        x.add_(1)
        if fail:
            raise RuntimeError("half-way")
        log.append("after")
        return x * 2

    return outer, [call(count(2), [], False), call(count(2), [], True)]


@program(raises=KeyError)
def raise_from():
    def outer(x, name):
        try:
            return x + int(name)
        except ValueError as error:
            raise KeyError(name) from error

    return outer, [call(normal(1), "3"), call(normal(1), "three")]


@program(raises=RuntimeError)
def raise_from_none():
    def outer(x, table):
        try:
            return x * table["scale"]
        except KeyError:
            raise RuntimeError("no scale") from None

    return outer, [call(normal(1), {"scale": 2}), call(normal(1), {})]


@program(raises=ZeroDivisionError)
def bare_raise_again():
    def outer(x, n, log):
        try:
            return x * (1 // n)
        except ZeroDivisionError:
            log.append("seen")
            raise

    return outer, [call(normal(1), 1, []), call(normal(1), 0, [])]


@program
def nested_try_and_reraise():
    def outer(x):
        log = []
        try:
            try:
                raise KeyError("inner")
            except KeyError as error:
                log.append("inner")
                raise ValueError("outer") from error
            finally:
                log.append("finally")
        except ValueError as error:
            log.append(type(error.__cause__).__name__)
            log.append(type(error.__context__).__name__)
        return x + len(log), log

    return outer, [call(normal(1))]


@program
def finally_overrides_return():
    def outer(x):
        try:
            return x + 1
        finally:
            return x * 10

    return outer, [call(count(2))]


@program
def try_finally_with_break_in_a_loop():
    def outer(x, stop):
        log = []
        for i in range(4):
            try:
                if i == stop:
                    break
                if i == 0:
                    continue
                x = x + i
            finally:
                log.append(i)
        return x, log

    return outer, [call(count(2), 2), call(count(2), 9), call(count(2), 0)]


@program
def exception_of_a_user_class():
    class ShapeError(Exception):
        def __init__(self, found, wanted):
            super().__init__(f"found {found}, wanted {wanted}")
            self.found = found

    def check(x, wanted):
        if tuple(x.shape) != wanted:
            raise ShapeError(tuple(x.shape), wanted)

    def outer(x):
        try:
            check(x, (2,))
        except ShapeError as error:
            return x.sum(), error.found, str(error)
        return x

    return outer, [call(normal(2)), call(normal(3))]


@program
def exception_from_a_callee_three_deep():
    def third(x, n):
        return x / (1 // n)

    def second(x, n):
        return third(x, n) + 1

    def outer(x, n):
        try:
            return second(x, n)
        except ArithmeticError as error:
            return x, type(error).__name__

    return outer, [call(normal(1), 1), call(normal(1), 0)]


@program(core=True, raises=RuntimeError)
def shape_mismatch_in_torch():
    def outer(a, b):
        c = a * 2
        return c @ b

    return outer, [call(normal(2, 3), normal(3, 2)), call(normal(2, 3), normal(2, 3))]


@program
def shape_mismatch_caught():
    def outer(a, b):
        try:
            return a + b
        except RuntimeError as error:
            return "must match" in str(error)

    return outer, [call(normal(2), normal(2)), call(normal(2), normal(3))]


@program(raises=RuntimeError)
def dtype_mismatch_in_torch():
    def outer(a, b):
        return torch.mm(a, b)

    return outer, [call(normal(2, 2), normal(2, 2)), call(normal(2, 2), normal(2, 2).double())]


@program(raises=IndexError)
def index_error_in_torch():
    def outer(x, i):
        y = x + 1
        return y[i] * 2

    return outer, [call(count(3), 2), call(count(3), 3)]


@program(raises=AttributeError)
def missing_attribute_of_a_tensor():
    def outer(x):
        y = x + 1
        return y.does_not_exist()

    return outer, [call(normal(1))]


@program(raises=TypeError)
def unsupported_operand():
    def outer(x, other):
        return x * 2 + other

    return outer, [call(normal(1), 1), call(normal(1), "text")]


@program
def attribute_error_drives_a_default():
    class Holder:
        pass

    def outer(x, holder):
        try:
            return x * holder.scale
        except AttributeError:
            holder.scale = 3.0
            return x

    holder = Holder()
    return outer, [call(count(2), holder), call(count(2), holder)]


@program
def exception_group():
    def outer(x, which):
        try:
            raise ExceptionGroup("many", [ValueError("a"), TypeError("b")])
        except* ValueError as group:
            x = x + len(group.exceptions)
        except* TypeError:
            x = x * 3
        return x

    return outer, [call(count(2), 0)]


@program
def exception_object_returned():
    def outer(x):
        try:
            raise ValueError("kept", x.shape[0])
        except ValueError as error:
            kept = error
        return kept.args, x + 1

    return outer, [call(normal(2)), call(normal(3))]


@program
def exception_variable_is_unbound_afterwards():
    def outer(x):
        try:
            raise ValueError
        except ValueError as error:
            name = type(error).__name__
        try:
            error
        except NameError:
            name += " gone"
        return x, name

    return outer, [call(normal(1))]


@program
def suppress():
    def outer(x, d):
        with contextlib.suppress(KeyError, TypeError):
            x = x + d["a"]
            x = x * d["b"]
        return x

    return outer, [call(count(2), {"a": 1}), call(count(2), {"a": 1, "b": 2}), call(count(2), {})]


@program(core=True)
def no_grad_block():
    def outer(x):
        with torch.no_grad():
            y = x * 2
        z = x * 3
        return y, z, y.requires_grad, torch.is_grad_enabled()

    return outer, [call(leaf(2)), call(normal(2)), under(torch.no_grad, leaf(2))]


@program
def no_grad_as_decorator():
    @torch.no_grad()
    def inner(x):
        return x * 2, torch.is_grad_enabled()

    def outer(x):
        y, inside = inner(x)
        return y + x, inside, torch.is_grad_enabled()

    return outer, [call(leaf(2)), call(leaf(3))]


@program
def no_grad_decorated_entry():
    @torch.no_grad()
    def outer(x):
        return x * 2

    return outer, [call(leaf(2)), call(normal(2))]


@program
def grad_modes_nested():
    def outer(x):
        with torch.no_grad():
            a = x * 2
            with torch.enable_grad():
                b = x * 3
            with torch.set_grad_enabled(x.shape[0] == 2):
                c = x * 4
        return a, b, c, torch.is_grad_enabled()

    return outer, [call(leaf(2)), call(leaf(3))]


@program
def set_grad_enabled_as_a_function():
    def outer(x):
        torch.set_grad_enabled(False)
        y = x * 2
        torch.set_grad_enabled(True)
        return y, x * 3

    return outer, [call(leaf(2))]


@program
def grad_mode_left_changed():
    def outer(x):
        torch.set_grad_enabled(False)
        return x * 2

    def again(x):
        return outer(x)

    return again, [call(leaf(2)), call(leaf(2))]


@program
def inference_mode_block():
    def outer(x):
        with torch.inference_mode():
            y = x * 2
            inside = torch.is_inference_mode_enabled()
        return x + 1, inside, y.is_inference()

    return outer, [call(normal(2))]


@program(core=True)
def gradients_asked_for_under_inference():
    def outer(x):
        with torch.enable_grad():
            y = x.clone()
            roots, mixed, enabled = y.abs().sqrt(), torch.lerp(x, x, -0.5), torch.is_grad_enabled()
        return roots, mixed, roots.requires_grad, mixed.requires_grad, enabled, torch.is_grad_enabled()

    return outer, [under(torch.inference_mode, leaf(3)), call(leaf(3)), under(torch.no_grad, leaf(3))]


@program(core=True)
def inference_mode_around_a_whole_function():
    layer = torch.nn.Linear(3, 3)

    @torch.inference_mode()
    def sample(x, steps):
        with torch.no_grad(), torch.inference_mode():
            for _ in range(steps):
                x = layer(x)
        return x, x.is_inference(), torch.is_grad_enabled()

    def outer(x):
        with torch.enable_grad(), torch.inference_mode():
            first, second = x.add_(1), sample(x, 2)
        with torch.inference_mode():
            third = layer(second[0])
        return first[0], second, third, torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    return outer, [call(normal(2, 3)), call(normal(4, 3)), under(torch.inference_mode, normal(2, 3))], layer


@program
def inference_mode_that_ends_before_the_graph():
    def outer(x, late):
        y = x * 2 if late else x
        with torch.inference_mode():
            z = y.relu()
            if late is None:
                print("inside")
                z = z + 1
        return y, z, z.sum() * 2, z.tolist()

    return outer, [call(normal(2), False), call(normal(2), True), call(normal(2), None)]


@program
def inference_mode_entered_by_hand_left_by_errors_and_switched_off():
    def outer(x):
        scope = torch.inference_mode()
        scope.__enter__()
        y = x * 2
        scope.__exit__(None, None, None)
        try:
            with torch.inference_mode():
                with torch.inference_mode(False):
                    grad = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
                raise ValueError
        except ValueError:
            with torch.no_grad(), torch.inference_mode(False):
                return y, grad, torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    return outer, [call(normal(2)), call(normal(3)), under(torch.no_grad, normal(2))]


@program(core=True)
def autocast_block():
    def outer(a, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            c = a @ b
            d = c.float() + a
            with torch.autocast("cpu", enabled=False):
                e = a @ b
        return c, d, e, a @ b

    return outer, [call(normal(4, 4), normal(4, 4)), call(leaf(4, 4), normal(4, 4))]


@program
def autocast_around_the_call():
    def outer(a, b):
        return torch.nn.functional.linear(a, b)

    def bfloat16():
        return torch.autocast("cpu", dtype=torch.bfloat16)

    a, b = normal(4, 4), normal(4, 4)
    return outer, [call(a, b), under(bfloat16, a, b), call(a, b)]


@program
def default_dtype_context():
    @contextlib.contextmanager
    def default_dtype(dtype):
        previous = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(previous)

    def outer(x):
        with default_dtype(torch.float64):
            inside = torch.ones(2)
        return inside, x + torch.ones(2), torch.get_default_dtype()

    return outer, [call(normal(2))]


@program(core=True)
def user_context_manager():
    class Tracker:
        def __init__(self):
            self.log = []

        def __enter__(self):
            self.log.append("enter")
            return self.log

        def __exit__(self, kind, value, traceback):
            self.log.append(kind.__name__ if kind else "exit")
            return kind is ValueError

    def outer(x, tracker, fail):
        with tracker as log:
            x = x + len(log)
            if fail:
                raise ValueError("swallowed")
            x = x * 2
        return x

    return outer, [call(count(2), Tracker(), False), call(count(2), Tracker(), True)]


@program
def contextlib_contextmanager():
    @contextlib.contextmanager
    def scaled(box, factor):
        box["scale"], previous = factor, box["scale"]
        try:
            yield box
        finally:
            box["scale"] = previous

    def outer(x, box):
        with scaled(box, 3.0) as inner:
            y = x * inner["scale"]
        return y + box["scale"]

    return outer, [call(count(2), {"scale": 1.0}), call(count(2), {"scale": 2.0})]


@program(raises=RuntimeError)
def exception_through_a_context_manager():
    @contextlib.contextmanager
    def logged(log):
        log.append("in")
        try:
            yield
        finally:
            log.append("out")

    def outer(x, log, fail):
        with logged(log):
            y = x + 1
            if fail:
                raise RuntimeError("inside")
        return y

    return outer, [call(normal(1), [], False), call(normal(1), [], True)]


@program
def several_managers_in_one_with():
    class Manager:
        def __init__(self, name, log):
            self.name, self.log = name, log

        def __enter__(self):
            self.log.append(f"+{self.name}")
            return self.name

        def __exit__(self, *exception):
            self.log.append(f"-{self.name}")

    def outer(x):
        log = []
        with Manager("a", log) as a, torch.no_grad(), Manager("b", log) as b:
            y = x * 2
            if x.shape[0] == 3:
                return y, log
        return y + 1, a + b, log

    return outer, [call(leaf(2)), call(leaf(3))]


@program
def exit_stack():
    def outer(x, n):
        log = []
        with contextlib.ExitStack() as stack:
            for i in range(n):
                stack.callback(log.append, i)
            stack.enter_context(torch.no_grad())
            y = x * 2
        return y, log

    return outer, [call(leaf(2), 2), call(leaf(2), 3)]


@program
def nullcontext_chosen_at_run_time():
    def outer(x, train):
        context = contextlib.nullcontext("value") if train else torch.no_grad()
        with context:
            y = x * 2
        return y, y.requires_grad

    return outer, [call(leaf(2), True), call(leaf(2), False)]


@program
def context_manager_as_decorator():
    class doubled(contextlib.ContextDecorator):
        def __enter__(self):
            entered.append("in")

        def __exit__(self, *exception):
            entered.append("out")

    entered = []

    @doubled()
    def inner(x):
        return x * len(entered)

    def outer(x):
        return inner(x) + len(entered)

    return outer, [call(count(2)), call(count(2))], entered


@program
def loop_with_with_and_continue():
    def outer(x, n):
        log = []
        for i in range(n):
            with contextlib.closing(Resource(log)):
                if i == 1:
                    continue
                x = x + i
        return x, log

    class Resource:
        def __init__(self, log):
            self.log = log

        def close(self):
            self.log.append("closed")

    return outer, [call(count(2), 3), call(count(2), 2)]


@program
def return_inside_with_inside_try():
    def outer(x, flag):
        log = []
        try:
            with torch.no_grad():
                if flag:
                    return x * 2, log
                x = x + 1
        finally:
            log.append(torch.is_grad_enabled())
        return x, log

    return outer, [call(leaf(2), True), call(leaf(2), False)]


@program(raises=NotImplementedError)
def not_implemented_by_a_base_class():
    class Base:
        def step(self, x):
            raise NotImplementedError

    class Doubles(Base):
        def step(self, x):
            return x * 2

    def outer(x, stepper):
        return stepper.step(x + 1)

    return outer, [call(normal(1), Doubles()), call(normal(1), Base())]


@program(raises=SystemError)
def exception_with_notes():
    def outer(x, fail):
        try:
            if fail:
                raise SystemError("base")
            return x
        except SystemError as error:
            error.add_note("a note")
            raise

    return outer, [call(normal(1), False), call(normal(1), True)]


@program
def record_function_and_profiler_scopes():
    def outer(x):
        with torch.profiler.record_function("block"):
            y = x * 2
        with torch.autograd.profiler.record_function("other"):
            return y + 1

    return outer, [call(normal(2))]


@program
def anomaly_and_saved_tensor_hooks():
    def outer(x, log):
        def pack(tensor):
            log.append("pack")
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return (x * x).sum()

    return outer, [call(leaf(2), []), call(normal(2), [])]


@program(raises=RuntimeError)
def generator_is_closed_when_the_exception_is_dropped():
    log = []

    def parts(items):
        log.append("start")
        try:
            for index, item in enumerate(items):
                yield item * index
        finally:
            log.append("end")

    def outer(x, y, items):
        for part in parts(items):
            x = x + y + part
        return x

    return outer, [call(count(2), count(2), [count(2), count(2)]), call(count(2), count(3), [count(2)]), call(count(3), count(2), [count(3)])], log


@program(raises=IndexError)
def modes_are_left_where_an_operation_fails():
    table = normal(4, 3)

    def inner(x, i):
        with torch.no_grad():
            row = torch.nn.functional.embedding(i, table)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            product = row @ x
        return product + row.sum()

    return inner, [call(leaf(3, 2), torch.tensor([1, 0])), call(leaf(3, 2), torch.tensor([9, 0])), call(leaf(3, 2), torch.tensor([2, 3]))]
