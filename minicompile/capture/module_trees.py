"""Trees of modules on which guards held, and which nobody has touched since: their guards need not be tested again.

What a guard reads below a module (its submodules, parameters, flags, hooks), or in a class, it reads from dictionaries.
`find_trees` picks the guards for which that is all, `ModuleTrees` remembers at run time for which modules they held, with
what was read. They hold as long as no such dictionary was changed and every object on the way is of the type, and has the
`__dict__`, that it had. Metadata of tensors is in no dictionary: tensor guards are always tested. Must not test guards or
write code.
"""

import collections
import operator
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from minicompile.capture.cpython_interface import HEAP_TYPE, MANAGED_DICT, RELIABLE, table_behind, watch
from minicompile.capture.guards import ALL_APART, Guard, Lasting, TensorGuard
from minicompile.capture.kinds import isinstance
from minicompile.capture.source import Argument, Attribute, Baked, Item, Source, is_trusted_module

MOST_TREES = 256
MOST_FAILURES = 8
"""So often in a row a tree may have been changed between two calls before it is given up."""

FIXED_TYPES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format,
               type(Ellipsis))
TABLES = (dict, collections.OrderedDict)
UNKNOWN: Any = type("Unknown", (), {})()


def has_plain_table(kind: type) -> bool:
    """Whether instances of a class have an ordinary `__dict__`, which is read in the ordinary way."""
    if kind.__getattribute__ is not object.__getattribute__ or not kind.__flags__ & MANAGED_DICT:
        return False
    tables = (vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base))
    return type(next(tables, None)) is types.GetSetDescriptorType


class Tree:
    """What was read below some modules.

    Attributes:
        roots: weak references to the modules; values: what the generated function needs of what was read.
        tables: the dictionaries; owners: the objects below whose types and `__dict__` matter; kept: these.
        state: tells whether anything of this was changed; seen: what it said when the guards held last, or `None` while that
            is not known; empty: the dictionaries that held nothing then: to fill such a one with `update` is the one change
            that goes unnoticed.
    """

    def __init__(self, roots: tuple[Any, ...], tables: tuple[Any, ...], owners: tuple[Any, ...], failures: int,
                 forget: Callable[[Any], None]) -> None:
        self.roots = [weakref.ref(root, forget) for root in roots]
        self.tables, self.owners, self.failures = tables, owners, failures
        self.values: tuple[Any, ...] = ()
        self.kept = [each for owner in (*owners, *roots) for each in (owner.__dict__, type(owner))]
        self.state, self.empty = watch(tables, (*owners, *roots)), list[Any]()
        self.seen: object = None

    def is_of(self, roots: tuple[Any, ...]) -> bool:
        """Whether these are the modules."""
        for root, known in zip(roots, self.roots):
            if known() is not root:
                return False
        return True


class ModuleTrees:
    """The trees on which the guards of one variant held, by the identity of their first root."""

    def __init__(self) -> None:
        self.trees: dict[int, Tree] = {}

    def unchanged(self, *roots: Any) -> tuple[Any, ...] | None:
        """What was read below these modules, if it is still what would be read and all guards on it hold."""
        tree = self.trees.get(id(roots[0]))
        if tree is None or not tree.is_of(roots) or tree.seen != tree.state() or tree.empty and any(tree.empty):
            return None
        tree.failures = 0
        return tree.values

    def begin(self, *roots: Any) -> tuple[Tree | None, object, list[Any]]:
        """What `keep` is told of the time before the guards are tested."""
        tree = self.trees.get(id(roots[0]))
        if tree is None or not tree.is_of(roots):
            return tree, None, []
        return tree, tree.state(), [table for table in tree.tables if type(table) is dict and not table]

    def keep(self, begun: tuple[Tree | None, object, list[Any]], roots: tuple[Any, ...], tables: tuple[Any, ...],
             owners: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """Remember that the guards held; for good only if all was watched before they were tested."""
        (tree, began, empty), key, trees = begun, id(roots[0]), self.trees
        if tree is not None and tree.failures >= MOST_FAILURES:
            return
        tables = tuple(map(table_behind, tables))
        if tree is not None and tree.is_of(roots) and all(map(operator.is_, (*tables, *owners), (*tree.tables, *tree.owners))):
            tree.seen, tree.empty, tree.values = began, empty, values
        elif len(trees) < MOST_TREES and all(type(table) in TABLES for table in tables) and all(
                has_plain_table(type(owner)) for owner in (*owners, *roots)):
            tree = trees[key] = Tree(roots, tables, owners, tree.failures if tree else 0, lambda _: trees.pop(key, None))
        if tree is not None:
            tree.failures += 1


class Plan:
    """Which sources of one variant are below modules, or in torch and the standard library, with what was read there.

    Attributes:
        roots, tables, owners: the sources of the modules, of the dictionaries, and of what has a `__dict__` or a type.
    """

    def __init__(self, call: dict[str, Any], changing: set[int]) -> None:
        self.call, self.changing = call, changing
        self.found: dict[int, tuple[Any, bool]] = {}
        self.roots: dict[int, Source] = {}
        self.tables: dict[int, Source] = {}
        self.owners: dict[int, Source] = {}

    def look(self, source: Source) -> tuple[Any, bool]:
        """The value of a source at capture, and whether it is read below a module, from nothing but dictionaries."""
        known = self.found.get(id(source))
        if known is None:
            known = self.found[id(source)] = self.value(source)
            if not known[1] and isinstance(known[0], torch.nn.Module) and has_plain_table(type(known[0])):
                self.roots[id(source)] = source
                known = self.found[id(source)] = known[0], True
        return known

    def touches(self, source: Source | None) -> bool:
        """Whether a source is read below a module, or by way of what is."""
        return source is not None and (self.look(source)[1] or self.touches(source.parent))

    def value(self, source: Source) -> tuple[Any, bool]:
        """As `look`, of a source seen for the first time."""
        if isinstance(source, Baked):
            value = source.value
            return value, type(value) is dict and is_trusted_module(value.get("__name__")) and self.is_fixed(source, value)
        if source.parent is None:
            return self.call.get(source.text, UNKNOWN), False
        base, below = self.look(source.parent)
        if base is UNKNOWN:
            return UNKNOWN, False
        kind = type(source)
        try:
            if isinstance(source, Attribute):
                if source.name == "__dict__" and isinstance(base, type) and isinstance(source.parent, Baked):
                    return base.__dict__, self.is_fixed(source, table_behind(base.__dict__))
                if source.name == "__dict__" and below and has_plain_table(type(base)):
                    self.own(source.parent)
                    return base.__dict__, True
                position = source.name.removeprefix("__closure__[").removesuffix("]")
                if position.isdigit():
                    return base.__closure__[int(position)], False
                return getattr(base, source.name), False
            if kind in (Item, Argument):
                return base[source.key], below and kind is Item and self.is_fixed(source.parent, base)
        except Exception:  # properties and keys are user code, which raises what it likes
            return UNKNOWN, False
        return UNKNOWN, False

    def own(self, source: Source) -> None:
        """Have the type and the `__dict__` of an object compared; those of the roots always are."""
        if id(source) not in self.roots:
            self.owners[id(source)] = source

    def is_fixed(self, source: Source, value: Any) -> bool:
        """Whether a container below a module, with its contents, is known not to change, watching it if need be."""
        if id(source) in self.tables:
            return True
        if type(value) in TABLES and id(value) not in self.changing:
            self.tables[id(source)] = source
            return True
        return type(value) in (tuple, torch.Size)

    def is_implied(self, guard: Guard) -> bool:
        """Whether a guard keeps holding as long as what was read below modules stays the same."""
        if guard.kind not in ("type", "identity", "constant", "absent", "structure", "same"):
            return False
        value, below = self.look(guard.source)
        if not below or not all(self.look(other)[1] for other in guard.others):
            return False
        if guard.kind == "type":
            if not type(value).__flags__ & HEAP_TYPE:
                return True
            if has_plain_table(type(value)):
                self.own(guard.source)
            return has_plain_table(type(value))
        if guard.kind in ("identity", "same"):
            is_table = type(value) in (dict, types.MappingProxyType)
            return guard.condition in IDENTITIES or is_table and self.is_fixed(guard.source, value)
        if guard.kind == "constant":
            return type(value) in FIXED_TYPES or isinstance(value, type)
        fixed_order = type(value) is not collections.OrderedDict or not value or guard.kind == "absent"
        return fixed_order and self.is_fixed(guard.source, value)


IDENTITIES = ("{0} is {1}", "{0} is {others[0]}", ALL_APART)


def find_trees(guards: list[Guard | TensorGuard], call: dict[str, Any], changing: set[int]) -> Lasting | None:
    """The guards that need not be tested on unchanged modules; `None` where there are too few for it to be worth it.

    `call` holds the callable and its arguments by the names of their sources, `changing` the identities of the
    dictionaries that the variant itself changes.
    """
    if not RELIABLE:
        return None
    plan = Plan(call, changing)
    within = {id(guard) for guard in guards if isinstance(guard, Guard) and plan.is_implied(guard)}
    if len(within) < FEWEST_GUARDS or not plan.roots:
        return None
    within.update(id(guard) for guard in guards if isinstance(guard, TensorGuard) and plan.look(guard.source)[1])
    behind = {id(guard) for guard in guards if id(guard) not in within and any(
        map(plan.touches, (guard.source, *getattr(guard, "others", ()))))}
    return Lasting([*plan.roots.values()], [*plan.tables.values()], [*plan.owners.values()], within, behind, ModuleTrees())


FEWEST_GUARDS = 12
