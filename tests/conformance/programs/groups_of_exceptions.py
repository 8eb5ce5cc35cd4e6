"""Groups of exceptions handled in parts (`except*`) around graph breaks; which exception is the context of which, and which one is
being handled, where it was another function that began to handle it.
"""

from __future__ import annotations

import contextlib
import sys
import traceback

import torch

from tests.conformance.catalogue import call, count, program, under


def described(error, depth=0):
    if error is None or depth > 4:
        return None
    parts = [described(part, depth + 1) for part in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    lines = [(e.name, e.lineno) for e in traceback.extract_tb(error.__traceback__) if e.filename == __file__]
    return (
        type(error).__name__,
        str(error),
        tuple(getattr(error, "__notes__", ())),
        described(error.__cause__, depth + 1),
        described(error.__context__, depth + 1),
        error.__suppress_context__,
        lines,
        parts,
    )


def make(k):
    return [
        lambda: None,
        lambda: ValueError("v"),
        lambda: KeyError("k"),
        lambda: ExceptionGroup("g", [ValueError(1), KeyError(2), OSError(3)]),
        lambda: ExceptionGroup(
            "g", [ValueError(1), ExceptionGroup("h", [ValueError(2), TypeError(3), ExceptionGroup("i", [KeyError(4)])])]
        ),
        lambda: BaseExceptionGroup("b", [ValueError(1), KeyboardInterrupt()]),
        lambda: ExceptionGroup("t", [TypeError(1)]),
    ][k]()


def guarded(inner):
    def f(x, k, log):
        try:
            z = inner(x, k, log)
        except BaseException as e:
            log.append(described(e))
            z = x * 5
        log.append(sys.exception())
        return z

    return f


def programs(inner):
    f = guarded(inner)
    return f, [call(count(3), k, []) for k in (*range(7), *range(7))]


@program(core=True)
def group_split_behind_a_break_in_the_try():
    def inner(x, k, log):
        e = make(k)
        y = x + 1
        try:
            print("try", y.sum().item())
            if e is not None:
                raise e
            y = y * 2
        except* ValueError as g:
            log.append(("V", described(g), sys.exception() is g))
            y = y - 1
        except* KeyError as g:
            log.append(("K", described(g), sys.exception() is g))
            y = y - 2
        return y

    return programs(inner)


@program
def breaks_in_every_clause_of_a_group():
    def inner(x, k, log):
        e = make(k)
        y = x + 1
        try:
            if e is not None:
                raise e
            y = y * 2
        except* ValueError as g:
            print("V", y.sum().item())
            log.append(("V", described(g), sys.exception() is g))
            y = y - 1
            print("V2", type(sys.exception()), y.sum().item())
        except* KeyError as g:
            print("K", y.sum().item())
            log.append(("K", described(g), sys.exception() is g))
            y = y - 2
        else:
            print("else")
            y = y + 4
        finally:
            print("fin", type(sys.exception()))
            y = y + 8
        return y

    return programs(inner)


@program
def raises_in_clauses_of_a_group_behind_breaks():
    def inner(x, k, log):
        e = make(k)
        y = x + 1
        try:
            if e is not None:
                e.add_note("noted")
                raise e
            y = y * 2
        except* ValueError as g:
            g.add_note("more")
            print("V", y.sum().item())
            y = y - 1
            raise
        except* KeyError as g:
            print("K", y.sum().item())
            y = y - 2
            raise RuntimeError("new")
        except* TypeError as g:
            print("T", y.sum().item())
            y = y - 2
            raise RuntimeError("new2") from g
        return y

    return programs(inner)


@program
def parts_of_a_group_raised_again():
    def inner(x, k, log):
        e = make(k)
        y = x + 1
        try:
            if e is not None:
                raise e
        except* ValueError as g:
            raise g.exceptions[0]
        except* (KeyError, TypeError) as g:
            raise g
        return y

    return programs(inner)


@program
def parts_of_a_group_raised_again_behind_breaks():
    def inner(x, k, log):
        e = make(k)
        y = x + 1
        try:
            if e is not None:
                raise e
        except* ValueError as g:
            print(y.sum().item())
            raise g.exceptions[0]
        except* (KeyError, TypeError) as g:
            print(y.sum().item())
            raise g
        return y

    return programs(inner)


@program
def breaks_where_a_clause_of_a_group_asks_for_its_types():
    def kinds(y, *ks):
        print("asked", y.sum().item(), type(sys.exception()).__name__)
        return ks

    def inner(x, k, log):
        e = make(k)
        y = x + 1
        try:
            if e is not None:
                raise e
        except* kinds(y, ValueError) as g:
            log.append(("V", described(g), sys.exception() is g))
            y = y - 1
        except* kinds(y, KeyError, TypeError) as g:
            log.append(("K", described(g), sys.exception() is g))
            y = y - 2
        return y

    return programs(inner)


@program
def breaks_in_nested_clauses_of_groups():
    def inner(x, k, log):
        e = make(k)
        y = x + 1
        try:
            try:
                if e is not None:
                    raise e
            except* ValueError as g:
                print("1", y.sum().item())
                try:
                    print("2", y.sum().item())
                    raise ExceptionGroup("n", [g, TypeError("t"), OSError("o")])
                except* TypeError as t:
                    print("3", y.sum().item())
                    log.append(("t", described(t), sys.exception() is t))
                    y = y * 2
                    print("4", y.sum().item(), sys.exception() is t)
                log.append("not reached?")
        except* OSError as o:
            print("5", y.sum().item())
            log.append(("o", described(o), sys.exception() is o))
        except* KeyError as o:
            print("6", y.sum().item())
            log.append(("k", described(o), sys.exception() is o))
            y = y - 1
        return y

    return programs(inner)


@program
def groups_from_outside_with_notes_and_traces():
    def inner(x, e, log):
        y = x + 1
        try:
            raise e
        except* ValueError as g:
            log.append(("V", described(g), sys.exception() is g, g.message))
            y = y - 1
        except* KeyError as g:
            log.append(("K", described(g), sys.exception() is g))
            y = y - 2
        return y

    f = guarded(inner)

    def noted(e, *n):
        for i in n:
            e.add_note(i)
        return e

    es = [
        ValueError("v"),
        ValueError("w"),
        noted(ExceptionGroup("g", [ValueError(1)]), "n1"),
        noted(ExceptionGroup("g2", [ValueError(2)]), "n2"),
        ExceptionGroup("g", [ValueError(1), KeyError(2)]),
        ExceptionGroup("x", [ValueError(3), KeyError(4)]),
        ExceptionGroup("x", [TypeError(3), KeyError(4)]),
        ExceptionGroup("x", [TypeError(3), ExceptionGroup("r", [KeyError(4), ValueError(5)])]),
    ]
    return f, [call(count(3), e, []) for e in es]


@program
def groups_of_classes_with_and_without_derive():
    class G(ExceptionGroup):
        pass

    class H(ExceptionGroup):
        def __new__(cls, m, e, code):
            s = super().__new__(cls, m, e)
            s.code = code
            return s

        def derive(self, excs):
            return H(self.message, excs, self.code)

    def f(x, k, log):
        y = x + 1
        try:
            if k == 0:
                raise G("a", [ValueError(1), TypeError(k), G("n", [ValueError(2), TypeError(3)])])
            raise H("a", [ValueError(1), TypeError(k)], k)
        except* ValueError as g:
            log.append((type(g).__name__, g.message, described(g), getattr(g, "code", None)))
            y = y * 2
        except* TypeError as g:
            log.append((type(g).__name__, g.message, described(g), getattr(g, "code", None)))
        return y

    return f, [call(count(3), k, []) for k in (0, 1, 2, 0)]


@program
def group_handled_in_a_generator():
    def gen(x, k):
        e = make(k)
        try:
            yield x + 1
            if e is not None:
                raise e
            yield x + 2
        except* ValueError as g:
            yield x * len(g.exceptions)
        except* KeyError as g:
            yield x - 7

    def inner(x, k, log):
        out = []
        for v in gen(x, k):
            out.append(v)
        return sum(out)

    return programs(inner)


@program
def group_handled_by_a_context_manager_around_breaks():
    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 0

        def forward(self, x, k, log):
            @contextlib.contextmanager
            def swallow():
                try:
                    yield
                except* KeyError as g:
                    log.append(described(g))
                finally:
                    self.n += 1

            e = make(k)
            with swallow():
                print("in", self.n) if k % 2 else None
                if e is not None:
                    raise e
                x = x + 1
            return x * self.n

    m = M()

    def f(x, k, log):
        try:
            return m(x, k, log)
        except BaseException as e:
            log.append(described(e))
            return x

    return f, [call(count(3), k, []) for k in (*range(7), *range(7))], m


@program
def tensors_in_a_group_of_exceptions():
    def inner(x, k, log):
        try:
            raise ExceptionGroup("g", [ValueError(x * 2), KeyError(x * 3)])
        except* ValueError as g:
            y = g.exceptions[0].args[0] + 1
            if k > 3:
                print(y.sum().item())
        except* KeyError as g:
            y = y + g.exceptions[0].args[0]
        return y

    return inner, [call(count(3), k, []) for k in (*range(7), *range(7))]


@program
def parts_of_a_group_returned():
    def inner(x, k, log):
        state = {"n": 0}
        e = make(k)
        held = None
        try:
            state["n"] += 1
            if e is not None:
                raise e
        except* ValueError as g:
            held = g
            state["n"] += 10
            x = x * state["n"]
        except* KeyError as g:
            held = (held, g)
            state["n"] += 100
            x.add_(1)
        finally:
            state["n"] += 1000
        log.append(state)
        return x, held

    def f(x, k, log):
        try:
            return inner(x, k, log)
        except ExceptionGroup as g:
            return x, g
        except BaseExceptionGroup as g:
            return x, g

    return f, [call(count(3), k, []) for k in (*range(7), *range(7))]


@program(raises=ExceptionGroup)
def rest_of_a_group_raised_to_the_caller():
    def f(x, k, log):
        e = make(k)
        try:
            if e is not None:
                raise e
        except* ValueError as g:
            log.append(1)
        return x + 1

    return f, [call(count(3), k, []) for k in (0, 1, 4, 1, 0, 4)]


@program
def handled_exception_asked_for_by_a_callee_that_breaks():
    def g(y, log):
        print("asked", y.sum().item())
        log.append(type(sys.exception()).__name__)
        try:
            raise KeyError("k")
        except KeyError as e:
            log.append(described(e)[:5])
        return y

    def f(x, k, log):
        y = x + 1
        try:
            if k:
                raise (ValueError, TypeError)[k - 1]("v")
        except Exception as e:
            y = g(y, log)
        else:
            y = g(y, log)
        return y * 2

    return f, [call(count(3), k, []) for k in (0, 1, 2, 1, 0)]


@program
def called_while_the_caller_handles_an_exception():
    def f(x, log):
        log.append(repr(sys.exception()))
        try:
            raise KeyError("in")
        except KeyError as e:
            log.append(described(e)[:5])
        try:
            raise
        except BaseException as e:
            log.append((type(e).__name__, str(e)))
        return x + 1

    @contextlib.contextmanager
    def handling(e):
        try:
            raise e
        except Exception:
            yield

    return f, [
        call(count(3), []),
        under(lambda: handling(ValueError("out")), count(3), []),
        call(count(3), []),
        under(lambda: handling(TypeError("out")), count(3), []),
        under(lambda: handling(TypeError("out2")), count(3), []),
    ]


@program
def context_set_by_hand_before_the_raise():
    def f(x, k, log):
        e = ValueError("a")
        e.__context__ = KeyError("k")
        try:
            if k == 1:
                print("b")
            raise e
        except ValueError as g:
            log.append(described(g))
        try:
            try:
                raise OSError("o")
            except OSError:
                if k == 2:
                    print("c")
                raise e
        except ValueError as g:
            log.append(described(g))
        return x + k

    return f, [call(count(3), k, []) for k in (*range(4), *range(4))]


@program
def chain_of_contexts_that_would_lead_back():
    def f(x, k, log):
        a, b, c = ValueError("a"), KeyError("b"), TypeError("c")
        try:
            try:
                try:
                    raise a
                except ValueError:
                    if k == 1:
                        print("1")
                    raise b
            except KeyError:
                if k == 2:
                    print("2")
                try:
                    raise c
                except TypeError:
                    if k == 3:
                        print("3")
                    raise a
        except ValueError as g:
            log.append(described(g))
        log += [described(a), described(b), described(c)]
        return x + k

    return f, [call(count(3), k, []) for k in (*range(4), *range(4))]


@program
def context_of_a_stop_iteration_in_a_generator():
    def gen(k):
        yield 1
        if k == 1:
            print("g")
        raise StopIteration(5)

    def f(x, k, log):
        try:
            try:
                raise OSError(1)
            except OSError:
                for i in gen(k):
                    x = x + i
        except RuntimeError as e:
            log.append(described(e))
        return x

    return f, [call(count(3), k, []) for k in (*range(4), *range(4))]


@program
def exception_raised_again_by_a_helper():
    def begin(k):
        raise ValueError(k)

    def go_on():
        raise

    def f(x, k, log):
        try:
            try:
                begin(k)
            except ValueError:
                if k == 2:
                    raise
                go_on()
        except Exception as again:
            log.append(described(again))
        return x

    return f, [call(count(3), k, []) for k in (*range(3), *range(3))]


@program
def groups_made_of_lists_from_outside():
    def f(x, errors, place):
        try:
            if errors:
                raise ExceptionGroup("several", errors)
        except* ValueError as group:
            x = x * 3 + len(group.exceptions)
        except* TypeError as group:
            x = x * 4 + len(group.exceptions)
        group = ExceptionGroup("again", [*errors, KeyError(1)])
        wrong = SyntaxError("wrong", place)
        return x, group.exceptions[0] is errors[0] if errors else None, wrong.filename, wrong.lineno

    lists = ([TypeError(1)], [ValueError(2), TypeError(3)], [], [ValueError(4)])
    return f, [call(count(3), errors, ["file", line, 2, "text"]) for line, errors in enumerate(lists)]
