"""Programs made at random: containers, objects, closures, loops, handlers and graph breaks, over shared state.

`python -m tests.conformance.random_programs START COUNT` writes that many programs, calls each five times with state that
lives on and changes between the calls, and prints the source of those that do not show what plain Python shows.
Must not know how programs are captured. What it avoids: `finally` of generators that are dropped (docs/limits.md).
"""

from __future__ import annotations

import collections
import contextlib
import linecache
import random
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import torch

import minicompile
from tests.conformance.catalogue import Call, Program, after, call
from tests.conformance.compilers import captured_only
from tests.conformance.harness import compare, run


class Thing:
    """An object with state, an order of its own, and the protocols of a container."""

    def __init__(self, a: int = 1) -> None:
        self.a, self.items = a, [a]

    def grow(self, by: int) -> Thing:
        """Change the object."""
        self.a += by
        self.items.append(self.a)
        return self

    @property
    def total(self) -> int:
        """Computed from what the object holds."""
        return sum(item for item in self.items if isinstance(item, int)) + len(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and self.a == other.a

    def __hash__(self) -> int:
        return 7

    def __contains__(self, item: object) -> bool:
        return item in self.items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __repr__(self) -> str:
        return f"Thing({self.a})"


class Odd(Thing):
    """A subclass with attributes of the class, attributes by a hook, and a truth of its own."""

    kind: Any = "odd"
    shared: list[Any] = []

    def __getattr__(self, name: str) -> int:
        if name.startswith("m_"):
            return len(name)
        raise AttributeError(name)

    def grow(self, by: int) -> Odd:
        """As the base, and seen in the class."""
        super().grow(by)
        Odd.shared.append(by)
        return self

    def __bool__(self) -> bool:
        return self.a % 2 == 0


@contextlib.contextmanager
def scope(log: list[Any], tag: str) -> Iterator[str]:
    """A context manager that notes how it was left."""
    log.append("+" + tag)
    try:
        yield tag
    except KeyError:
        log.append("K" + tag)
        raise
    except ValueError:
        log.append("V" + tag)
    finally:
        log.append("-" + tag)


@minicompile.disable
def opaque(value: Any = 1) -> Any:
    """A function that is not captured."""
    return value


NUMBERS = """n|m|1|2|len(l)|len(d)|n + 1|m * 2|o.a|n % 3|-n|l.count(1)|(n < m)|int(p.a)|k.get('a', 3)|p.total|len(o)""".split("|")
KEYS = "'a'|'b'|n|1|True|(n, m)|'z'".split("|")
LISTS = "l|l2|o.items|p.items|Odd.shared".split("|")
VALUES = "@n|@n|@n|@l|x.sum()|o|p|d|[@n, @n]|(@n,)|'t' + str(n)|x|None|{@k: @n}|lambda: n|x * @n|l[:]|tuple(sorted(s))|fresh".split("|")
CONDITIONS = """@n < @n|@n <= @n < @n|@l|p|o|@k in d|@n in @l|l is l2|o is p|o == p|@n in s|hasattr(o, 'extra')|isinstance(o, Odd)
|(w := @n) > 2|not @l or @n|getattr(o, 'extra', None)|any(v is l for v in d.values())""".replace("\n", "").split("|")
STATEMENTS = """@l.append(@v)|@l.append(@n)|@l.insert(@n, @n)|@l[@n] = @v|del @l[@n:]|@l.pop()|@l += [@n]|@l.extend(@l[:3])|@l.reverse()
|n = @l.pop(0) if @l and type(@l[0]) is int else n|@l[1:2] = [@n, @v]|@l.remove(@n)|del @l[-9:-4]
|@l.sort(key=lambda v: (str(type(v)), v if type(v) is int else 0))|d[@k] = @v|d[@k] = @n|d.pop(@k, None)|del d[@k]|k[@k] = @n
|d.setdefault(@k, []).append(@n)|d.update({@k: @v})|d = d or {@k: @n}|d.popitem()|s.add(@n)|s.discard(@n)|s.update({@n, @n})
|s ^= {1, @n}|s.clear()|o.a = @n|o.extra = @v|del o.extra|o.grow(@n)|p.grow(@n)|setattr(p, 'x1', @v)|Odd.kind = @n|p.m_foo|p.nope
|l = l2|l2 = l|l2 = list(l)|o.items = l2|p.items = o.items|d = dict(k)|k = d|o, p = p, o|l, l2 = l2, l|fresh = Thing(n)|fresh = Odd(m)
|o = fresh|fresh.items = l|l2 = [v for v in l if v is not l]|n = @n|m = @n|n, m = @n, @n|n //= @n|n, *rest = [n, *l][:2]
|x = x + @n|x.add_(@n)|x[0] = @n|x = x.clone()|y = x|y.mul_(2)|x = torch.where(x > @n, x, y)|y = x[1:]|y.add_(1)|y = x * 1|print(@n)
|opaque()|log.append(opaque(@n))|x = x * opaque(2)|log.append(f'{n} {m!r:>3} {o} {len(l)}')|log.append(@v)|bump(@n)|log.append(peek())
|COUNT[0] += @n|total[0] = n|log.extend(sorted(s))|log.append([*@l][:2])|log.append(list(d)[:3])|log.append({**d}.keys() & {'a', 1})
|log.append(max(l, default=0, key=lambda v: v if type(v) is int else -1))|log.append(list(zip(l, d))[:2])|it = iter(l)
|log.append([i for i, v in enumerate(l) if v == n])|log.append(next(it, None))|ref = [o, p, o]|ref[0].a = 10|log.append(ref[0] is o)
|queue.append(n)|queue.appendleft(x.sum())|log.append(queue.popleft())|queue.rotate(1)|counts[n] += 1|log.append(counts.most_common(1))
|groups[n % 2].append(m)|log.append(groups[m])|order.move_to_end('a')|order['n'] = n|log.append(order.popitem(last=False))
""".replace("\n", "").split("|")
ITERABLES = """range(@n % 4)|list(l)|d.copy().items()|sorted(s)|zip(l[:2], 'ab')|enumerate(l[:3])|reversed(l[:2])|list(o)|k.copy()""".split("|")
BLOCKS = r"""if @c:\n+\nelse:\n+|if @c:\n+|for v in @i:\n    log.append(v)\n+|for v in @i:\n+\n    if @c: break\nelse:\n+|for _ in range(3):\n+\n    if @c: continue\n+
|try:\n+\nexcept (KeyError, IndexError) as e:\n    log.append(str(e))\nelse:\n+|try:\n+\nexcept Exception as e:\n    log.append(type(e).__name__)\nfinally:\n+
|try:\n+\nfinally:\n+|with scope(log, 's') as tag:\n+\n    if @c: raise ValueError(@n)|match @v:\n    case [a_, *_]: log.append(a_)\n    case {'a': a_}: l.append(n)\n    case int() if n > 1: n = m
|def inner(q, l=l, *, z=@n):\n    nonlocal n, x\n+\n    n += z\n    return @v\nlog.append(inner(@n))|log.append([@n + i for i in range(@n % 4) if @n < 3])"""
HEAD = """
def make(torch, Thing, Odd, scope, opaque, COUNT, collections):
    total = [0]
    def f(x, n, m, l, d, s, o, p, k, log):
        y, l2, fresh, ref, it = x.clone(), [1, 2], Thing(3), [o, p], iter(())
        queue, counts, groups = collections.deque([1], 3), collections.Counter(), collections.defaultdict(list)
        order = collections.OrderedDict(a=1, b=2)
        def bump(by):
            nonlocal n
            n += by
            return n
        def peek():
            return n, len(l), type(o).__name__
"""
TAIL = """
        return x, y, n, m, l, l2, d, fresh, ref, list(queue), counts, dict(groups), order
    return f, total
"""
ERRORS = "(IndexError, KeyError, ValueError, AttributeError, TypeError, ZeroDivisionError)"


class Writer:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.random, self.depth = random.Random(seed), 0

    def filled(self, text: str) -> str:
        """A template with what its marks stand for."""
        marks = {"@n": NUMBERS, "@k": KEYS, "@l": LISTS, "@v": VALUES, "@c": CONDITIONS, "@i": ITERABLES}
        while (place := text.find("@")) >= 0:
            text = text[:place] + self.random.choice(marks[text[place : place + 2]]) + text[place + 2 :]
        return text

    def block(self, count: int) -> str:
        """Some statements."""
        lines = []
        for _ in range(count):
            if self.depth < 3 and self.random.random() < 0.3:
                self.depth += 1
                shape = self.random.choice(BLOCKS.replace("\n|", "|").split("|"))
                for line in shape.replace("\\n", "\n").split("\n"):
                    inside = textwrap.indent(self.block(self.random.randint(1, 3)), "    ") if line == "+" else self.filled(line)
                    lines.append(inside)
                self.depth -= 1
            else:
                line = self.filled(self.random.choice(STATEMENTS))
                risky = self.random.random() < 0.7
                lines.append(f"try: {line}\nexcept {ERRORS} as e: log.append(str(e))" if risky else line)
        return "\n".join(lines)

    def source(self) -> str:
        """The program."""
        return HEAD + textwrap.indent(self.block(self.random.randint(6, 14)), " " * 8) + TAIL


def program_of(seed: int) -> tuple[Program, str]:
    """A program and its source."""
    text, name = Writer(seed).source(), f"<random program {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    code = compile(text, name, "exec")

    def factory() -> tuple[Any, ...]:
        Odd.kind, Odd.shared = "odd", []
        namespace: dict[str, Any] = {}
        exec(code, namespace)  # the text is ours
        seen, state = [0], State(seed)
        function, total = namespace["make"](torch, Thing, Odd, scope, opaque, seen, collections)
        return function, state.calls(), (vars(state), seen, total, Odd.shared)

    return Program(f"random_program_{seed}", "random", factory, backward=False), text


class State:
    """What the calls of a program share."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed).choice
        self.l, self.d, self.s = [self.choose(range(4)) for _ in range(self.choose(range(4)))], {"a": 1, "b": [1]}, {1, 2, 5}
        self.o, self.p, self.k, self.log = Thing(2), Odd(3), {1: 2}, list[Any]()

    def arguments(self, x: torch.Tensor, n: int) -> tuple[Any, ...]:
        """The arguments of one call."""
        return x, n, 3, self.l, self.d, self.s, self.o, self.p, self.k, self.log

    def change(self) -> None:
        """What the caller does between two calls."""
        changes: list[Callable[[], Any]] = [
            lambda: self.l.append(3), lambda: self.d.update(c=list(self.l)), lambda: setattr(self.o, "a", 5), self.o.items.clear,
            lambda: setattr(self.p, "items", self.l), lambda: self.s.add(9), lambda: self.d.pop("a", None),
            lambda: setattr(Odd, "kind", "changed"), lambda: setattr(self.o, "extra", [2]), lambda: vars(self.o).pop("extra", None)]
        self.choose(changes)()

    def calls(self) -> list[Call]:
        """Five calls."""
        same = [call(*self.arguments(torch.ones(3), 2)) for _ in range(2)]
        others = [after(self.change, *self.arguments(torch.arange(3.0), number)) for number in (1, 3)]
        aliased = call(*self.arguments(torch.ones(3), 2))
        aliased.args = (*aliased.args[:6], self.p, *aliased.args[7:])
        return [*same, *others, aliased]


def differences(seed: int) -> list[str]:
    """What a caller can tell apart between a program and the program compiled."""
    program, text = program_of(seed)
    try:
        expected = run(program, lambda function: function)
    except RecursionError:  # containers that hold themselves cannot be written down
        return []
    found = list(compare(expected, run(program, captured_only)))
    if any("RecursionError" in difference for difference in found):  # so the tracer gives up on such containers, too
        return []
    return [*found[:3], text] if found else []


if __name__ == "__main__":
    start, count = map(int, sys.argv[1:])
    for number in range(start, start + count):
        print("\n".join(["", f"program {number}:", *difference]) if (difference := differences(number)) else ".", end="", flush=True)
