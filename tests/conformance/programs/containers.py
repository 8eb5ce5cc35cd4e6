"""Programs about lists, tuples, dicts, sets and the containers of `collections`."""

from __future__ import annotations

import collections
import dataclasses
import typing

import torch

from tests.conformance.catalogue import after, call, count, integers, normal, program


class Pair(typing.NamedTuple):
    """A typed named tuple with a method."""

    left: torch.Tensor
    right: torch.Tensor
    label: str = "pair"

    def total(self):
        return self.left + self.right


@program(core=True)
def list_built_and_stacked():
    def outer(x, n):
        rows = []
        for i in range(n):
            rows.append(x * i)
        return torch.stack(rows), rows

    return outer, [call(normal(2), 3), call(normal(2), 4)]


@program
def every_list_method():
    def outer(xs, y):
        xs.append(y)
        xs.extend([y + 1, 5])
        xs.insert(1, "inserted")
        last = xs.pop()
        second = xs.pop(1)
        copied = xs.copy()
        copied.reverse()
        numbers = [3, 1, 2, 1]
        numbers.sort(reverse=True)
        numbers.remove(1)
        return last, second, copied, numbers, numbers.index(2), numbers.count(1)

    return outer, [call([normal(1)], normal(1)), call([normal(1), normal(2)], normal(1))]


@program
def list_arithmetic():
    def outer(xs, n):
        return xs + [n], xs * 2, [0] * n, len(xs * n), [*xs, n] == [n], n in [1, 2]

    return outer, [call([normal(1)], 2), call([], 3)]


@program
def nested_list_of_tensors():
    def outer(grid):
        return [[cell * (i + j) for j, cell in enumerate(row)] for i, row in enumerate(grid)], grid[-1][0]

    return outer, [call([[normal(1), normal(1)], [normal(1)]]), call([[normal(1)]])]


@program(core=True)
def list_of_another_length():
    def outer(xs):
        return sum(xs) / len(xs)

    return outer, [call([normal(2)] * 2), call([normal(2), normal(2), normal(2)]), call([normal(2)])]


@program
def same_list_twice():
    def outer(a, b):
        a.append(1)
        return len(b), a is b, [a, b]

    shared = [0]
    return outer, [call(shared, shared), call([0], [0])]


@program
def list_containing_itself():
    def outer(x):
        loop = [x * 2]
        loop.append(loop)
        return loop[1][1][0] + 1

    return outer, [call(normal(2))]


@program
def tuple_operations():
    def outer(t, x):
        return t + (x,), t[0] * 2, t[1:], len(t), t.index(3), t.count(3), t * 2, hash(t[1:]) == hash((3, "a"))

    return outer, [call((normal(1), 3, "a"), normal(1))]


@program(core=True)
def dict_in_dict_out():
    def outer(batch):
        return {"sum": batch["x"] + batch["y"], **batch, "x": batch["x"] * 2}

    return outer, [call({"x": normal(2), "y": normal(2)}), call({"y": normal(2), "x": normal(2)})]


@program
def every_dict_method():
    def outer(d, x):
        d.setdefault("list", []).append(x)
        d.update({"new": x * 2}, other=3)
        popped = d.pop("gone", None), d.pop("a")
        got = d.get("missing", "default"), "a" in d, "new" in d.keys()
        last = d.popitem()
        merged = d | {"merged": 1}
        fresh = dict.fromkeys(["p", "q"], 0)
        fresh |= {"p": 1}
        return popped, got, last, merged, fresh, list(d.values()), dict(zip("ab", [x, 1]))

    return outer, [call({"a": normal(1)}, normal(1)), call({"a": 1, "gone": 2}, normal(1))]


@program
def dict_order_and_deletion():
    def outer(d, x):
        del d["b"]
        d["b"] = x + 1
        d["a"] = x
        for key in list(d):
            if key.startswith("_"):
                del d[key]
        return list(d), next(iter(d)), list(reversed(d.items()))

    return outer, [call({"b": 1, "_c": 2, "a": 3}, normal(1)), call({"a": 1, "b": 2}, normal(1))]


@program
def dict_keys_of_every_kind():
    def outer(x):
        table = {1: x, (1, 2): x + 1, None: x + 2, torch.float32: x + 3, "s": x + 4, torch.Tensor: x + 5, 2.5: x + 6}
        return table[1], table[(1, 2)], table[None], table[x.dtype], table[type(x)], table[5 / 2], table[True]

    return outer, [call(normal(1))]


@program
def dict_with_tensor_keys():
    def outer(x, y, table):
        table[x] = y * 2
        return table[x], y in table, len(table)

    return outer, [call(normal(1), normal(1), {})]


@program(core=True)
def dict_whose_keys_change():
    def outer(d):
        total = torch.zeros(2)
        for key in d:
            total = total + d[key] * len(key)
        return total

    d = {"a": normal(2)}
    return outer, [call(d), after(lambda: d.update(bb=normal(2)), d), after(lambda: d.pop("a"), d)]


@program(raises=KeyError)
def missing_key():
    def outer(d, key):
        x = d["x"] + 1
        return x + d[key]

    return outer, [call({"x": normal(1), "y": 1}, "y"), call({"x": normal(1)}, "z")]


@program(raises=IndexError)
def index_out_of_range():
    def outer(xs, i):
        return xs[i] * 2

    return outer, [call([normal(1), normal(1)], 1), call([normal(1)], 3)]


@program
def sets_of_numbers():
    def outer(x, a, b):
        a.add(x.shape[0])
        a.discard(100)
        both = a & b, a | b, a - b, a ^ b, a <= b, a.isdisjoint(b), frozenset(a)
        return x * len(a), both, sorted({i % 3 for i in range(7)}), 3 in a

    return outer, [call(normal(3), {1, 2}, {2, 3}), call(normal(1), {1, 100}, {5})]


@program
def set_removal_and_update():
    def outer(x, names):
        names.update(["c", "d"], {"e"})
        names.remove("c")
        names -= {"d"}
        names.intersection_update({"a", "e"})
        return x + len(names), names.copy()

    return outer, [call(normal(1), {"a"}), call(normal(1), set())]


@program
def set_of_tensors():
    def outer(x, y):
        seen = {x, y, x}
        return len(seen), x in seen, x + y

    x = normal(1)
    return outer, [call(x, normal(1)), call(x, x)]


@program(core=True)
def namedtuple_in_and_out():
    Point = collections.namedtuple("Point", ["x", "y"])

    def outer(p):
        moved = p._replace(x=p.x + 1)
        x, y = moved
        return Point(y, x), moved.y, p[0], Point._fields, p._asdict()["y"]

    return outer, [call(Point(normal(2), normal(2))), call(Point(normal(3), 2.0))]


@program
def namedtuple_made_in_each_call():
    def outer(x, names):
        Features = collections.namedtuple("Features", names, defaults=(None, "none"), rename=True)
        Features.note = "made here"
        first = Features(x + 1)
        second = first._replace(**{first._fields[1]: x.sum()})
        kind = type(second)
        return tuple(first), tuple(second), kind is Features, kind.note, kind._field_defaults, kind.__module__, repr(kind._make([1, 2, 3]))

    return outer, [call(normal(2), ["a", "b", "c"]), call(normal(2), "a b c"), call(normal(3), ("a", "class", "_c"))]


@program
def namedtuple_with_defaults_set_on_its_new():
    def outer(x):
        Features = collections.namedtuple("Features", ["a", "b"])
        Features.__new__.__defaults__ = (x * 2, None)
        print("made")
        return tuple(Features()), tuple(Features(b=x)), Features.__new__.__defaults__

    return outer, [call(normal(2)), call(normal(2))]


@program
def namedtuple_with_bad_fields():
    def outer(x, names):
        try:
            return tuple(collections.namedtuple("Features", names)(x))
        except ValueError as error:
            return x - 1, str(error)

    return outer, [call(normal(2), ["a", "a"]), call(normal(2), ["a"]), call(normal(2), ["_a"])]


@program
def typed_namedtuple_with_method():
    def outer(pair):
        return Pair(pair.total(), pair.left, label=pair.label + "!"), isinstance(pair, tuple), pair.label

    return outer, [call(Pair(normal(2), normal(2))), call(Pair(normal(2), normal(2), "other"))]


@program
def tensor_method_that_returns_a_namedtuple():
    def outer(x):
        best = x.max(dim=1)
        values, indices = torch.topk(x, 2)
        return best, best.values + 1, best.indices, values, indices, torch.sort(x, descending=True).values

    return outer, [call(normal(2, 3)), call(normal(4, 5))]


@program
def ordered_dict():
    def outer(x):
        table = collections.OrderedDict(a=x, b=x + 1)
        table.move_to_end("a")
        table["c"] = x + 2
        first = table.popitem(last=False)
        return table, first, list(table)

    return outer, [call(normal(1))]


@program
def ordered_dict_argument():
    def outer(table, x):
        table.move_to_end("a", last=False)
        table["new"] = x
        return sum(table.values())

    return outer, [call(collections.OrderedDict(b=normal(1), a=normal(1)), normal(1))]


@program
def default_dict():
    def outer(names, xs):
        groups = collections.defaultdict(list)
        totals = collections.defaultdict(float)
        for name, x in zip(names, xs):
            groups[name].append(x)
            totals[name] += x.sum()
        return groups, dict(totals), "zzz" in groups, groups["zzz"]

    return outer, [call("aba", [normal(1) for _ in range(3)]), call("cc", [normal(1), normal(1)])]


@program
def default_dict_argument_with_lambda():
    def outer(table, x, key):
        table[key] = table[key] + x
        return table[key] * 2

    table = collections.defaultdict(lambda: 10.0)
    return outer, [call(table, normal(1), "a"), call(table, normal(1), "a"), call(table, normal(1), "b")]


@program
def deque_as_window():
    history = collections.deque(maxlen=2)

    def outer(x):
        history.append(x)
        return torch.stack(list(history)).mean(0), len(history), history[0]

    return outer, [call(normal(2)) for _ in range(4)], history


@program
def deque_rotations():
    def outer(x):
        queue = collections.deque([x, x + 1, x + 2])
        queue.rotate(1)
        queue.appendleft(x * 10)
        right, left = queue.pop(), queue.popleft()
        queue.extendleft([left])
        return right, left, list(queue), queue.maxlen

    return outer, [call(normal(1))]


@program
def counter():
    def outer(x, words):
        counts = collections.Counter(words)
        counts.update(["a", "b"])
        counts["z"] += x.shape[0]
        return x * counts["a"], counts.most_common(1), counts["absent"], dict(counts + collections.Counter(a=1))

    return outer, [call(normal(2), "aab"), call(normal(3), "")]


@program
def chain_map():
    def outer(x, overrides):
        settings = collections.ChainMap(overrides, {"scale": 2.0, "shift": 1.0})
        settings["seen"] = True
        return x * settings["scale"] + settings["shift"], sorted(settings)

    return outer, [call(normal(2), {"scale": 3.0}), call(normal(2), {})]


@program
def copies_of_containers():
    def outer(xs, d):
        other, shallow = list(xs), dict(d)
        other.append(d["k"])
        shallow["k"] = 0
        xs[0] = xs[0] + 1
        return other, shallow, tuple(xs), [*d], list(d.items())

    return outer, [call([normal(1)], {"k": normal(1)})]


@program
def list_of_pairs_sorted_by_key():
    def outer(scored):
        ordered = sorted(scored, key=lambda pair: (-pair[1], pair[0]))
        names, numbers = zip(*ordered)
        return names, torch.tensor(numbers), min(scored, key=lambda pair: pair[1])[0]

    return outer, [call([("a", 1), ("b", 3), ("c", 3)]), call([("z", 0)])]


@program(core=True)
def dataclass_construction_and_use():
    @dataclasses.dataclass
    class Batch:
        x: torch.Tensor
        y: torch.Tensor | None = None
        tags: list = dataclasses.field(default_factory=list)
        size: int = dataclasses.field(init=False)

        def __post_init__(self):
            self.size = self.x.shape[0]

    def outer(x):
        batch = Batch(x * 2)
        batch.tags.append("made")
        batch.y = batch.x + batch.size
        return batch, dataclasses.replace(batch, x=x)

    return outer, [call(normal(2)), call(normal(3))]


@program
def frozen_dataclass_as_argument():
    @dataclasses.dataclass(frozen=True, order=True)
    class Settings:
        scale: float = 1.0
        shift: int = 0

    def outer(x, settings):
        if settings > Settings(1.0, 5):
            x = -x
        fields = [field.name for field in dataclasses.fields(settings)]
        return x * settings.scale + settings.shift, settings == Settings(), fields, dataclasses.asdict(settings)

    return outer, [call(count(2), Settings()), call(count(2), Settings(2.0)), call(count(2), Settings(2.0, 1))]


@program(raises=dataclasses.FrozenInstanceError)
def frozen_dataclass_assigned():
    @dataclasses.dataclass(frozen=True)
    class Settings:
        scale: float

    def outer(x, settings):
        y = x * settings.scale
        settings.scale = 2.0
        return y

    return outer, [call(count(2), Settings(1.0))]


@program
def dataclass_with_slots_and_default_tensors():
    @dataclasses.dataclass(slots=True, kw_only=True)
    class State:
        hidden: torch.Tensor
        steps: int = 0

    def outer(state, x):
        state.hidden = torch.tanh(state.hidden + x)
        state.steps += 1
        return state

    state = State(hidden=torch.zeros(2))
    return outer, [call(state, normal(2)), call(state, normal(2))]


@program
def dict_subclass_and_list_subclass():
    class Config(dict):
        def __getattr__(self, name):
            return self[name]

    class Stack(list):
        def top(self):
            return self[-1]

    def outer(x, config, stack):
        stack.append(x * config.scale)
        config["seen"] = len(stack)
        return stack.top() + config["shift"], stack

    return outer, [call(normal(1), Config(scale=2.0, shift=1.0), Stack()), call(normal(1), Config(scale=1, shift=0), Stack([1]))]


@program
def dict_with_missing():
    class Lookup(dict):
        def __missing__(self, key):
            self[key] = len(key)
            return self[key]

    def outer(x, table):
        return x * table["abc"] + table["a"], len(table)

    return outer, [call(normal(1), Lookup(a=5)), call(normal(1), Lookup())]


@program
def user_dict_like_tokenizer_output():
    class Output(collections.UserDict):
        @property
        def ids(self):
            return self.data["ids"]

    def outer(batch):
        return batch.ids * 2, batch["mask"].sum(), list(batch.keys())

    return outer, [call(Output(ids=integers(3), mask=torch.ones(3))), call(Output(mask=torch.ones(2), ids=integers(2)))]


@program
def ordered_dict_subclass_output():
    class ModelOutput(collections.OrderedDict):
        def __init__(self, **fields):
            super().__init__(**fields)
            for name, value in fields.items():
                setattr(self, name, value)

        def to_tuple(self):
            return tuple(self.values())

    def outer(x):
        output = ModelOutput(loss=x.sum(), logits=x * 2)
        return output, output.loss + 1, output.to_tuple()

    return outer, [call(normal(2)), call(normal(3))]


@program
def constant_containers_are_fresh():
    def outer(x):
        table = {"a": [1, 2], "b": (3, [4])}
        table["a"].append(x)
        table["b"][1].append(x)
        return table

    return outer, [call(normal(1)), call(normal(1))]


@program
def list_as_queue_of_work():
    def outer(x, depth):
        work, done = [(x, 0)], []
        while work:
            value, level = work.pop()
            if level == depth:
                done.append(value)
                continue
            work.append((value + 1, level + 1))
            work.append((value * 2, level + 1))
        return done

    return outer, [call(normal(1), 2), call(normal(1), 1)]


@program
def tensors_grouped_by_dtype():
    def outer(tensors):
        groups = {}
        for tensor in tensors:
            groups.setdefault(tensor.dtype, []).append(tensor)
        return {str(dtype): torch.cat(group) for dtype, group in groups.items()}

    return outer, [
        call([normal(1), integers(2), normal(3)]),
        call([integers(1), normal(2), normal(1, dtype=torch.float64)]),
    ]


@program
def index_with_a_python_object():
    class Index:
        def __init__(self, at):
            self.at = at

        def __index__(self):
            return self.at

    def outer(x, xs, index):
        return xs[index], x[index], list(range(5))[index :]

    return outer, [call(count(3), [normal(1), normal(1)], Index(1)), call(count(3), [normal(1), normal(1)], Index(0))]


@program
def list_comparison_by_identity_of_tensors():
    def outer(xs, y):
        return any(x is y for x in xs), [i for i, x in enumerate(xs) if x is y], y * 2

    y = normal(1)
    return outer, [call([normal(1), y], y), call([normal(1)], y)]


@program
def number_subclass():
    class Meters(float):
        def __add__(self, other):
            return Meters(float(self) + float(other))

        @property
        def centimeters(self):
            return self * 100

    def outer(x, length):
        return x * length, (length + 1).centimeters, type(length + 1).__name__

    return outer, [call(count(2), Meters(2.0)), call(count(2), Meters(3.0))]


@program
def string_subclass_and_tuple_subclass():
    class Name(str):
        def shout(self):
            return self.upper() + "!"

    class Size(tuple):
        @property
        def area(self):
            return self[0] * self[1]

    def outer(x, name, size):
        return x.reshape(size) * size.area, name.shout(), f"{name}", len(size)

    return outer, [call(normal(6), Name("a"), Size((2, 3))), call(normal(6), Name("b"), Size((3, 2)))]
