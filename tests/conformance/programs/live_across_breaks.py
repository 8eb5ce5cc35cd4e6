"""Values of every kind, live where a graph breaks: iterators at their places, what shares their state, small native objects."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import operator
import os
import sys
import tempfile
import weakref

import torch
from torch import nn

from tests.conformance.catalogue import after, call, count, leaf, normal, program


class Flag(enum.Flag):
    A = 1
    B = 2


class Tagged(tuple):
    pass


class Frozen(frozenset):
    pass


def twice(outer):
    return outer, [call(count(2)), call(count(3))]


@program(core=True)
def breaks_in_a_loop_over_groups():
    def outer(x):
        out = []
        for key, group in itertools.groupby([1, 1, 1, 2, 2, 3, 1, 1], key=lambda z: z):
            print(x.sum().item() + key)
            out.append((key, next(group) * x))
            if key == 2:
                print(len(list(group)))
        return out

    return twice(outer)


@program
def breaks_in_loops_over_the_members_of_groups():
    def outer(x):
        out = []
        for key, group in itertools.groupby([1, 1, 1, 2, 2, 3, 1, 1]):
            for item in group:
                print(x.sum().item() + item)
                x = x + 1
                if item == 2:
                    break
            out.append(key)
        return x, out

    return twice(outer)


@program
def a_break_behind_the_first_members_of_groups():
    def outer(x):
        out, items = [], iter([1, 1, 1, 2, 2, 3, 1, 1, 1])
        groups = itertools.groupby(items)
        for key, group in groups:
            first = next(group)
            print(x.sum().item() + first)
            out.append((key, first))
            if key == 3:
                out.append(next(items))
        old = itertools.groupby("aab")
        (one, gone), (two, left) = next(old), next(old)
        print(x.sum().item())
        return x, out, one, two, list(gone), list(left), list(old)

    return twice(outer)


@program
def breaks_in_loops_over_pairs_and_batches():
    def outer(x):
        out, items = [], iter(range(6))
        pairs = itertools.pairwise(items)
        out.append(next(pairs))
        for a, b in itertools.pairwise([x, x + 1, x * 3]):
            print(a.sum().item())
            out.append(a * b)
        out.append(next(items))
        for a, b in pairs:
            print(x.sum().item() + a)
            out.append((a, b, next(items, "end")))
        if sys.version_info >= (3, 12):
            items = iter(range(8))
            for batch in itertools.batched(items, 2):
                print(x.sum().item())
                out.append((batch, next(items, "end")))
            rest = itertools.batched(iterable=[1, 2, 3], n=2)
            out.append(next(rest))
            print(x.sum().item())
            out.append(list(rest))
        return out

    return twice(outer)


@program
def copies_of_one_iterator_across_breaks():
    def outer(x):
        a, b = itertools.tee(x * i for i in range(4))
        out = [next(b)]
        for p, q in zip(a, b):
            print(p.sum().item())
            out.append(p - q)
        many, few, none = itertools.tee(range(100), 3)
        numbers = [[next(many) for _ in range(60)], [next(few) for _ in range(57)]]
        print(x.sum().item())
        return out, list(a), list(b), numbers, next(many), next(few), sum(many), sum(few), sum(none)

    return twice(outer)


@program
def breaks_in_loops_over_a_queue_and_over_calls():
    queue = collections.deque([1, 2])

    def outer(x):
        left, out = [0, 3, 2, 1], []
        for item in iter(left.pop, 0):
            print(x.sum().item() + item)
            out.append(item)
        for item in collections.deque(out):
            print(x.sum().item() + item)
        for item in reversed((*queue, 5)):
            print(x.sum().item() + item)
        own = collections.deque([1, 2, 3])
        ahead = iter(own)
        out.append(next(ahead))
        own.append(4)
        own.popleft()
        print(x.sum().item())
        try:
            out.append(next(ahead))
        except RuntimeError as error:
            out.append(str(error))
        return x, out, left

    return outer, [call(count(2)), call(count(3))], queue


@program
def breaks_in_a_loop_over_a_queue_that_has_grown():
    queue = collections.deque([1, 2])

    def outer(x):
        queue.append(len(queue))
        for item in queue:
            print(x.sum().item() + item)
        return x

    return outer, [call(count(2)), call(count(3))], queue


@program
def breaks_in_a_loop_over_an_enum():
    def outer(x):
        out = []
        for member in Flag:
            print(x.sum().item(), member.name)
            out.append(member)
        for member in reversed(Flag):
            print(x.sum().item(), member.name)
        return out, [member.value for member in Flag]

    return twice(outer)


@program
def getters_and_keys_across_a_break():
    def outer(x):
        add = operator.methodcaller("add", x, alpha=3)
        last, name, method = operator.itemgetter(-1, 0), operator.attrgetter("shape"), [x].__len__
        key = functools.cmp_to_key(lambda a, b: (a > b) - (a < b))
        small, limits, doubled = key(1), torch.finfo(torch.float32), x * 2
        parts = property(lambda self: doubled), staticmethod(lambda: doubled + 1)
        try:
            raise ValueError("a")
        except ValueError:
            _, error, trace = sys.exc_info()
        print(x.sum().item())
        values = add(x), last([1, 2, 3]), tuple(name(x)), method(), sorted([3, 1, 2], key=key), small < key(2), limits.max
        try:
            raise error.with_traceback(trace)
        except ValueError as other:
            return values, parts[0].fget(1), parts[1](), other.args, other is error

    return twice(outer)


@program
def attributes_of_tuples_and_frozen_sets():
    def outer(x):
        row, bag = Tagged([1, x]), Frozen([1])
        row.tag, bag.tag = x + 1, x + 2
        print(x.sum().item())
        again = Tagged([x])
        again.tag = row
        return row, row.tag, bag, bag.tag, again, again.tag.tag

    return twice(outer)


@program
def attributes_of_a_tuple_that_is_kept():
    kept = []

    def outer(x):
        tags = [getattr(row, "tag", None) for row in kept]
        row = Tagged([x])
        row.tag = x * 2
        kept.append(row)
        return row, tags

    return outer, [call(normal(2)) for _ in range(3)], kept


@program
def copies_of_containers_across_a_break():
    def outer(x, table):
        queue = collections.deque(table, 3).copy()
        ordered, filled = collections.OrderedDict(table).copy(), collections.defaultdict(list, table) | {"q": 1}
        twice = queue + queue
        print(x.sum().item())
        filled["n"].append(x)
        return queue, ordered | {"z": 2}, filled, twice, x * len(twice)

    return outer, [call(count(2), {"a": 1}), call(count(3), {"b": 2, "c": 3})]


@program
def no_warning_of_iterators_that_are_put_at_their_places():
    def outer(x):
        steps = itertools.cycle([1, 2, 3])
        sums = itertools.accumulate([1, 2, 3], initial=4)
        out = [next(steps), next(sums)]
        print(x.sum().item())
        return out, [next(steps) for _ in range(4)], list(sums)

    return twice(outer)


@program
def a_name_is_that_of_a_comprehension_and_of_closures():
    scale = 7

    def inner(x):
        made = [lambda: scale for scale in range(3)]
        print("inner")
        return [one() for one in made], x * scale

    def outer(x):
        place, early = 4, lambda: place
        made = [(lambda: place, print("outer")) for place in range(3)]
        later = [(lambda: late, print("later")) for late in range(3)]
        late = 9
        return [one() for one, _ in made + later], x * place * early(), inner(x), (lambda: late)()

    return twice(outer)


@program
def a_file_that_lives_as_long_as_the_variable_that_nobody_reads_any_more():
    def outer(x):
        kept = tempfile.NamedTemporaryFile()
        name = kept.name
        print("between")
        y = x * 2
        print("exists", os.path.exists(name))
        return y + 1, os.path.exists(name)

    return twice(outer)


@program
def hooks_of_a_node_that_only_a_variable_holds():
    log = []

    def outer(x):
        node = x.view_as(x).grad_fn.next_functions[0][0]
        node.register_prehook(lambda gradients: log.append("before"))
        node.register_hook(lambda inputs, gradients: log.append("behind"))
        (x * 2).sum().backward()
        return x.grad

    return outer, [call(leaf(2)), call(leaf(3))], log


@program
def gradients_that_a_tensor_refuses():
    def refused(x, gradient):
        try:
            x.grad = gradient
        except (RuntimeError, TypeError) as error:
            return x + 1, str(error)
        return x * 2, x.grad

    def own(x):
        return refused(x, x), refused(x, torch.ones(2, 2)), refused(x, x.double()), refused(x, 1), refused(x, x.detach() + 1)

    return own, [call(count(2)), call(leaf(3))]


class Slotted:
    __slots__ = ("options", "name", "__own")

    def __init__(self, options, name=""):
        self.options = options
        self.name = name
        self.__own = {"own": name}

    def own(self):
        return self.__own


@program
def dictionaries_in_slots_that_were_read_before_a_break():
    def outer(x):
        found = []
        for one in [Slotted({}, "a"), Slotted({"rate": 1}), Slotted(dict(more=2), "b")]:
            options, own = one.options, one.own()
            options["each"] = True
            print(one.name)
            found.append((options is one.options, own is one.own(), options, own))
            one.options = {"changed": options}
        return x + 1, found, one.options

    return twice(outer)


@program
def slots_that_are_logged_read_and_changed_around_a_break():
    log = []

    def outer(x, scale):
        one = Slotted({"n": 0}, name=[])
        options, rows = one.options, one.name
        options["n"] += 1
        rows.append(x[1:] * scale)
        log.append(options)
        print("between")
        rows.append(one.options["n"])
        one.options["n"] += 1
        return rows, one.name is rows, log[-1] is one.options

    return outer, [call(normal(2), 2.0), call(normal(4), 3.0), call(normal(4), 3.0)], log


@program
def a_module_that_is_not_used_again():
    def outer(x):
        module = nn.Sigmoid()
        seen = weakref.ref(module)
        handle = module.register_full_backward_hook(lambda module, incoming, outgoing: tuple(2 * gradient for gradient in incoming))
        y = module(x)
        print("between")
        y.sum().backward()
        return x.grad, seen() is None, len(handle.hooks_dict_ref())

    return outer, [call(leaf(3)), call(leaf(3))]


NOT_A_NUMBER = float("nan")


@program
def the_same_nan_is_found_in_a_tuple_behind_a_break():
    def outer(x):
        row = (1.0, NOT_A_NUMBER)
        print(x.sum().item())
        return NOT_A_NUMBER in row, row.index(NOT_A_NUMBER), row[1] is NOT_A_NUMBER, x + 1

    return twice(outer)


class ChangingKey:
    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return self.name == other.name


@program
def keys_that_changed_since_are_not_found_behind_a_break():
    def outer(x):
        key, other = ChangingKey("a"), ChangingKey("b")
        table, names = {key: x}, {key, other}
        key.name = "c"
        print(x.sum().item())
        return key in table, key in names, other in names, len(table), x + 1

    return twice(outer)


@program
def a_key_put_into_a_table_from_outside_has_changed_since():
    known = {}

    def outer(x):
        known.clear()
        key = ChangingKey("first")
        known[key] = x
        key.name = "changed"
        print(x.sum().item())
        return key in known, len(known), [each.name for each in known], x + 1

    return twice(outer)


@program
def an_iterator_of_a_tee_made_of_another_one():
    def outer(x):
        first, second = itertools.tee(row + 1 for row in x)
        next(first)
        third = type(first)(first)
        rest = list(first)
        print(len(rest))
        return rest, list(second), list(third)

    return twice(outer)


@program
def lists_grow_around_breaks():
    def decoded(scores, most):
        tags, states = [0], []
        while len(tags) < most:
            states.append(scores[len(tags) % 3] * tags[-1])
            tags.append(int(states[-1].argmax()) + 1)
        return tags, states[-1], len(states), states[:-1] if states else None

    return decoded, [call(normal(3, 4), most) for most in (11, 2, 12, 9)]


@program
def a_history_that_others_read_and_shorten():
    history = []

    def step(x):
        if history:
            x = x + history[-1] * len(history)
        history.append(x * 0.5)
        return x, history[-1], len(history)

    shortened = after(lambda: history.__delitem__(slice(2, None)), normal(2))
    return step, [*(call(normal(2)) for _ in range(6)), shortened, call(normal(2)), after(history.clear, normal(2))], history
