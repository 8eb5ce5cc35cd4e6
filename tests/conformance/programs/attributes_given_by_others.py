"""What a hunt for silent answers found: metaclasses that give attributes, dictionaries of attributes that are no plain ones,
methods of tensors compared, the state of a thread, globals over builtins, `json` with a function of the user's, and complex
numbers added to real tensors.
"""

from __future__ import annotations

import collections
import json
import threading
import typing

from tests.conformance.catalogue import after, call, count, normal, program


@program(raises=RuntimeError)
def complex_number_added_to_a_real_tensor_in_place():
    def f(k):
        k += 1j
        return k

    return f, [call(count(3)), call(count(4)), call(count(5))]


@program(core=True)
def methods_of_a_tensor_read_before_and_behind_a_break():
    def f(x):
        a = x.add
        print("b")
        b = x.add
        return x + 1, a == b, a != b, a is b, hash(a) == hash(b), a == x.sub, {a: 1}.get(b)

    return f, [call(count(3)), call(count(3))]


@program
def methods_of_a_tensor_found_in_a_list_behind_a_break():
    def f(x, k):
        a = [x.add, x.sub]
        if k:
            print("b")
        return x + 1, x.add in a, a.index(x.sub), x.add == x.add

    return f, [call(count(3), 0), call(count(3), 1), call(count(3), 1)]


@program
def method_of_a_tensor_from_outside_compared():
    def f(x, m):
        return x + 1, m == x.add, m == x.sub, x.add == m

    x = count(3)
    return f, [call(x, x.add), call(x, x.sub), call(x, count(3).add)]


@program
def default_of_json_that_prints():
    state = {"n": 1}

    def default(o):
        print("asked")
        return state["n"]

    class T:
        pass

    t = T()

    def f(x):
        return x + state["n"], json.dumps({"a": t}, default=default)

    return f, [call(count(3)), after(lambda: state.update(n=2), count(3)), after(lambda: state.update(n=3), count(3))]


@program
def default_of_json_that_reads_before_a_callee_prints():
    state = {"n": 1}

    def inner():
        print("asked")

    def default(o):
        a = state["n"]
        inner()
        return a

    class T:
        pass

    t = T()

    def f(x):
        return x + 1, json.dumps({"a": t}, default=default)

    return f, [call(count(3)), after(lambda: state.update(n=2), count(3)), after(lambda: state.update(n=3), count(3))]


@program
def what_a_metaclass_gives_by_getattr_changes():
    table = {"color": 3}

    class Meta(type):
        def __getattr__(cls, name):
            if name in table:
                return table[name]
            raise AttributeError(name)

    class C(metaclass=Meta):
        own = 2

    def f(x):
        return x + C.color + C.own, getattr(C, "nope", None), hasattr(C, "late")

    return f, [
        call(count(3)),
        after(lambda: table.update(color=4), count(3)),
        after(lambda: table.update(late=4), count(3)),
    ]


@program
def what_a_metaclass_gives_by_getattribute_changes():
    table = {"color": 3}

    class Meta(type):
        def __getattribute__(cls, name):
            if name in table:
                return table[name]
            return super().__getattribute__(name)

    class C(metaclass=Meta):
        own = 2

    def f(x):
        return x + C.color + C.own

    return f, [
        call(count(3)),
        after(lambda: table.update(color=4), count(3)),
        after(lambda: table.update(own=4), count(3)),
    ]


@program
def metaclass_of_an_argument_gives_by_getattr():
    class Meta(type):
        level = 1

        def __getattr__(cls, name):
            return len(name) * cls.level

    class C(metaclass=Meta):
        pass

    c = C()

    def f(x, c):
        return x + type(c).abc + C.abcd, hasattr(c, "abc")

    return f, [
        call(count(3), c),
        after(lambda: setattr(Meta, "level", 2), count(3), c),
        after(lambda: setattr(C, "abc", 7), count(3), c),
    ]


@program
def getattr_of_a_metaclass_prints():
    class Meta(type):
        def __getattr__(cls, name):
            print("asked", name)
            return n[0]

    class C(metaclass=Meta):
        pass

    n = [1]

    def f(x):
        return x + C.abc

    return f, [
        call(count(3)),
        after(lambda: n.append(n.pop() + 1), count(3)),
        after(lambda: n.append(n.pop() + 1), count(3)),
    ]


@program
def getattribute_of_a_metaclass_has_effects():
    class Meta(type):
        def __getattribute__(cls, name):
            log.append(name) if not name.startswith("__") else None
            return super().__getattribute__(name)

    log = []

    class C(metaclass=Meta):
        @classmethod
        def make(cls, x):
            return x * cls.factor

        factor = 3

    def f(x):
        return C.make(x)

    return f, [call(count(3)), after(lambda: setattr(C, "factor", 4), count(3))], log


@program
def global_over_a_builtin_made_and_deleted():
    def f(x, d):
        global sum
        a = sum([1, 2])
        if d:
            sum = lambda v: 9
        b = sum([1, 2])
        if d:
            del sum
        return x + a, b, sum([3])

    return f, [call(count(3), 0), call(count(3), 1), call(count(3), 0), call(count(3), 1)]


@program(raises=NameError)
def global_over_a_builtin_deleted_twice():
    def f(x, d):
        global min
        min = lambda *v: 9
        del min
        if d:
            print("x")
        r = min(1, 2)
        del min
        return x + r

    return f, [call(count(3), 0), call(count(3), 1)]


@program
def builtin_read_where_a_global_was_deleted():
    def f(x):
        global ord
        ord = abs
        first = ord(-3)
        del ord
        try:
            del ord
        except NameError as error:
            return x + first, ord("a"), str(error)

    return f, [call(count(3)), call(count(4))]


@program(core=True)
def an_object_that_notes_every_question():
    asked = []

    class Noting:
        def __init__(self, scale):
            self.scale = scale

        def __getattribute__(self, name):
            asked.append(name)
            return object.__getattribute__(self, name)

        def __len__(self):
            return 3

        def times(self, x):
            return x * self.scale

    noting = Noting(2.0)

    def f(x):
        made, table = Noting(x.shape[0]), {noting: 1}
        held = [noting, made]
        y = noting.times(x)
        print("made")
        made.scale += 1
        return y + made.times(x), len(noting), bool(made), held[0] is noting, noting in table, isinstance(made, Noting)

    return f, [call(count(3)), call(count(3)), after(lambda: setattr(noting, "scale", 3.0), count(2))], asked


class AttributesAsKeys(dict):
    """The usual way to read the entries of settings as attributes."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


@program(core=True)
def an_object_that_is_its_own_dictionary():
    settings = AttributesAsKeys(scale=2.0, inner=AttributesAsKeys(count=1))

    def f(x):
        settings.calls = settings.get("calls", 0) + 1
        settings["last"] = x
        settings.inner.count += 1
        for _ in range(settings.inner["count"]):
            x = x * settings.scale
        if getattr(settings, "shift", None) is not None:
            x = x + settings.shift
        made = AttributesAsKeys(a=x)
        made.b = settings["calls"]
        return x, hasattr(settings, "scale"), hasattr(settings, "nothing"), settings.last, made, made["b"], vars(settings) is settings

    calls = [call(normal(2)), after(lambda: setattr(settings, "shift", 1.0), normal(2))]
    calls += [after(lambda: settings.pop("shift"), normal(2)), after(lambda: settings.update(scale=0.5), normal(2))]
    return f, calls, settings


@program
def a_dictionary_of_attributes_that_notes_missing_keys_or_an_order():
    class Holder:
        pass

    counted, ordered = Holder(), Holder()
    counted.__dict__ = collections.defaultdict(int, a=1)
    ordered.__dict__ = collections.OrderedDict(a=1)

    def f(x):
        counted.a += 1
        ordered.b = counted.a
        return x * counted.a + ordered.a, hasattr(counted, "c"), counted.__dict__["d"], getattr(ordered, "c", 7), ordered.b

    return f, [call(normal(2)), after(lambda: setattr(ordered, "c", 3), normal(2)), after(lambda: setattr(counted, "c", 3), normal(2))]


@program
def a_class_that_shows_another_dictionary_than_its_objects_have():
    class Shown:
        def __init__(self):
            self.scale = 1.0

        @property
        def __dict__(self):
            return {"scale": 99.0, "other": 5}

    shown = Shown()

    def f(x):
        made = Shown()
        made.scale += 1
        shown.written = made.scale
        return x * shown.scale, made.scale, hasattr(shown, "other"), getattr(shown, "scale"), vars(shown), shown.written

    return f, [call(normal(2)), after(lambda: setattr(shown, "scale", 3.0), normal(2)), after(lambda: setattr(shown, "other", 3), normal(2))]


@program
def a_class_with_slots_that_shows_a_dictionary():
    class Slotted:
        __slots__ = ("a", "b")

        def __init__(self):
            self.a, self.b = 1, 2

        @property
        def __dict__(self):
            return {"a": self.a, "c": 3}

    slotted = Slotted()

    def f(x):
        return x * slotted.a, vars(slotted), hasattr(slotted, "c"), {**slotted.__dict__}

    return f, [call(normal(2)), after(lambda: setattr(slotted, "a", 3), normal(2))]


@program
def type_variables_and_new_types_know_their_module():
    outside = typing.TypeVar("outside")

    def f(x):
        kinds = typing.TypeVar("T"), typing.ParamSpec("P"), typing.NewType("N", int), outside
        return x + 1, [kind.__module__ for kind in kinds], outside.__name__

    return f, [call(normal(2)), call(normal(3))]


class OfThread(threading.local):
    """A state of each thread, which starts anew in every one."""

    scale = 2.0

    def __init__(self):
        self.calls, self.marked = 0, False

    def mark(self):
        if self.marked:
            raise ValueError("marked twice")
        self.marked = True


@program(core=True)
def attributes_that_each_thread_has_for_itself():
    store, state = threading.local(), OfThread()

    def push(entry):
        try:
            stack = store.stack
        except AttributeError:
            stack = store.stack = []
        stack.append(entry)
        return stack

    def f(x):
        stack = push((x.shape[0], {}))
        state.calls += 1
        state.mark()
        store.last = x * state.scale
        result = store.last + len(stack), vars(store) is store.__dict__, dict(vars(state)), getattr(state, "nothing", None)
        state.marked = False
        del store.last
        return *result, hasattr(store, "last"), sorted(store.__dict__)

    return f, [call(count(3)), call(count(3)), call(count(4))], (store.__dict__, state.__dict__)


@program(raises=ValueError)
def the_state_of_a_thread_when_something_is_raised():
    state = OfThread()

    def f(x):
        state.calls += 1
        state.mark()
        return x + state.calls

    return f, [call(count(3)), call(count(3)), after(lambda: setattr(state, "marked", False), count(3))], state.__dict__
