"""Guards: the conditions under which a captured variant may be used, as Python text and as sentences.

This module collects conditions and writes them down; it must not decide what has to be guarded.
"""

import builtins
import collections
import dataclasses
import functools
import keyword
import math
import re
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from minicompile.capture import torch_interface
from minicompile.capture.kinds import isinstance
from minicompile.capture.source import Computed, Source, identifier, literal
from minicompile.errors import Location


@dataclasses.dataclass
class Guard:
    """One condition on the value of a source.

    Attributes:
        source: whose value is tested.
        condition: Python text with `{0}` for the value, `{1}`... for the constants, `{others[0]}`...
            for other sources, `{every}` for all of these.
        constants: objects the text needs.
        sentence: the condition in words, with `{0}` for the value's name.
        kind: `constant`, `type`, `identity`, `structure`, `absent`, `tensor`, `same`, `shape` or `overlap`.
        expected: the value at capture, for records of recompiles.
        others: the other sources; location: the line of the program that needs the condition, where that is known.
    """

    source: Source
    condition: str
    constants: tuple[Any, ...]
    sentence: str
    kind: str
    expected: Any = None
    others: tuple[Source, ...] = ()
    location: Location | None = None

    def words(self) -> str:
        """The condition in words."""
        return self.sentence.replace("{0}", self.source.words())

    def text(self) -> str:
        """The condition as an expression for people."""
        names = [name if len(name := shown(value)) < 80 else type(value).__name__ for value in self.constants]
        others = [other.words() for other in self.others]
        return self.condition.format(self.source.words(), *names, others=others, every=", ".join(others))


def shown(value: Any) -> str:
    """A constant as text, made by no code of the user's."""
    if isinstance(value, type) or "__qualname__" in vars(type(value)):
        return str(value.__qualname__)
    if type(value) in (list, set, frozenset):
        return f"[{', '.join(map(shown, value))}]"
    return literal(value) or (repr(value) if type(value).__module__ == "torch" else type(value).__name__)


class TensorKind(NamedTuple):
    """What there is to say of a tensor that is not kept."""

    dtype: torch.dtype
    shape: torch.Size
    device: torch.device
    requires_grad: bool


@dataclasses.dataclass
class TensorGuard:
    """A tensor whose type, dtype, device, layout, gradient flag, sizes and strides are fixed but for dynamic dims."""

    source: Source
    tensor: torch.Tensor | TensorKind
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    kind: str = "tensor"
    location: Location | None = None

    check: Callable[..., bool] | None = None

    def let_go(self) -> None:
        """Keep a check of the tensor's kind instead of the tensor."""
        if isinstance(self.tensor, torch.Tensor):
            self.check = tensor_check([self])
            self.tensor = TensorKind(self.tensor.dtype, self.tensor.shape, self.tensor.device, self.tensor.requires_grad)

    def text(self) -> str:
        """The condition as an expression for people."""
        return f"is_same_kind_of_tensor({self.source.words()})"

    def words(self) -> str:
        """The condition in words."""
        shape = "x".join("any" if size is None else str(size) for size in self.sizes) or "scalar"
        grad = ", requires grad" if self.tensor.requires_grad else ""
        return f"`{self.source.words()}` is a {self.tensor.dtype} tensor of size {shape} on {self.tensor.device}{grad}"


CODE_AT: dict[type, str] = {types.FunctionType: "__code__", property: "fget.__code__", staticmethod: "__func__.__code__",
                            classmethod: "__func__.__code__", functools.cached_property: "func.__code__"}


class GuardSet:
    """The guards of one variant.

    Attributes:
        items: those in the order in which capture needed them; `here` tells at which line that is.
        apart: id of a source to all sources that were compared with it, directly or not, and where the first was.
    """

    def __init__(self, here: Callable[[], Location | None]) -> None:
        self.items: list[Guard | TensorGuard] = []
        self.apart: dict[int, tuple[list[Source], Location | None]] = {}
        self.here = here

    def all(self) -> list[Guard | TensorGuard]:
        """All of them; one for each group of objects that have to be different."""
        groups = {id(group): group for group in self.apart.values()}
        return [*self.items, *(guard_of_different(sources, place) for sources, place in groups.values())]

    def constant(self, source: Source, value: Any) -> None:
        """Require that a source holds this very constant, type included."""
        text = literal(value)
        if value is None or value is True or value is False or value is Ellipsis:
            condition, constants = f"{{0}} is {'...' if value is Ellipsis else value}", ()
        elif text is not None and type(value) in (int, str, bytes):
            shown = text.replace("{", "{{").replace("}", "}}")
            condition, constants = f"type({{0}}) is {type(value).__name__} and {{0}} == {shown}", ()
        elif type(value) is float:
            condition, constants = "same_float({0}, {1})", (value,)
        elif isinstance(value, (torch.dtype, torch.layout, torch.memory_format, type)):
            condition, constants = "{0} is {1}", (value,)
        elif type(value) not in (torch.Size, torch.device):  # others are equal with other parts
            condition, constants = "type({0}) is {2} and repr({0}) == {1}", (repr(value), type(value))
        else:
            condition, constants = "type({0}) is {2} and {0} == {1}", (value, type(value))
        shown = repr(value) if len(repr(value)) < 60 else f"{type(value).__name__} seen first"
        self.test(source, condition, constants, f"`{{0}}` is {shown}", "constant", value)

    def type(self, source: Source, value: Any) -> None:
        """Require the exact type of a source."""
        kind = type(value)
        self.test(source, "type({0}) is {1}", (kind,), f"`{{0}}` is of type {kind.__name__}", "type", kind)

    def identity(self, source: Source, value: Any) -> None:
        """Require that a source is this very object; of a function also its code, which tools that reload modules replace."""
        path = CODE_AT.get(type(value))
        code = path and functools.reduce(lambda owner, part: getattr(owner, part, None), path.split("."), value)
        condition, constants = f"{{0}} is {{1}} and {{0}}.{path} is {{2}}" if code else "{0} is {1}", (value, code)
        self.test(source, condition, constants, f"`{{0}}` is the same {shown(value)}", "identity", value)

    def test(self, source: Source, condition: str, constants: tuple[Any, ...], sentence: str, kind: str,
             expected: Any = None, others: tuple[Source, ...] = ()) -> None:
        """Require a condition given as text."""
        self.items.append(Guard(source, condition, constants, sentence, kind, expected, others, self.here()))

    def same(self, source: Source, other: Source) -> None:
        """Require that two sources hold the same object."""
        self.test(source, "{0} is {others[0]}", (), f"`{{0}}` is `{other.words()}`", "same", True, (other,))

    def different(self, source: Source, other: Source) -> None:
        """Require that two sources hold different objects."""
        group, others = (self.apart.get(id(each)) or ([each], self.here()) for each in (source, other))
        if group is not others:
            group[0].extend(others[0])
            self.apart.update(dict.fromkeys(map(id, group[0]), group))


def guard_of_different(sources: list[Source], location: Location | None) -> Guard:
    """The guard that no two sources hold one object."""
    names = ", ".join(f"`{source.words()}`" for source in sources[:4]) + ", ..." * (len(sources) > 4)
    return Guard(sources[0], ALL_APART, (len(sources),), f"{names} are different objects", "same", others=tuple(sources),
                 location=location)


class Writer:
    """Lines of a generated function: fetches each source once, names the objects it needs.

    Attributes:
        lines: the statements so far.
        namespace: the objects that the text refers to by name.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {}
        self.fetched: dict[int, str] = {}
        self.by_text: dict[str, str] = {}
        self.named: dict[int, str] = {}
        self.used: set[str] = {"F", "A", "K", "MISS"}
        self.emitted: set[str] = set()
        self.keep: list[Any] = []

    def unique(self, hint: str, upper: bool = False) -> str:
        """A variable name not used before that resembles `hint`."""
        base = identifier(hint)[-40:].lstrip("_0123456789") or "v"
        if base.startswith("output_"):
            base = f"user_{base}"  # the graph's outputs have such names
        base = base.upper() if upper else base
        name, number = base, 1
        while name in self.used or name in KEYWORDS:
            number += 1
            name = f"{base}_{number}"
        self.used.add(name)
        return name

    def constant(self, value: Any, hint: str = "constant") -> str:
        """The name by which the text refers to an object."""
        if id(value) not in self.named:
            name = self.named[id(value)] = self.unique(hint, upper=not callable(value))
            self.namespace[name] = value
            self.keep.append(value)
        return self.named[id(value)]

    def fetch(self, source: Source) -> str:
        """The variable that holds the value of `source`, fetched now if it was not before."""
        name = self.fetched.get(id(source))
        if name is not None:
            return name
        base = self.fetch(source.parent) if source.parent is not None else ""
        if isinstance(source, Computed):
            text = source.text.format(*map(self.fetch, source.parts))
        else:
            text = source.expression(base, self.constant)
        name = self.by_text.get(text)
        if name is None:
            named_already = source.parent is None and not isinstance(source, Computed)
            name = self.by_text[text] = text if named_already else self.unique(source.words())
        if name != text and name not in self.emitted:
            self.lines.append(f"{name} = {text}")
            self.emitted.add(name)
        self.fetched[id(source)] = name
        self.keep.append(source)
        return name

    def condition(self, guard: Guard) -> str:
        """The text of a guard over fetched variables."""
        names = [inline_literal(value) or self.constant(value, "expected") for value in guard.constants]
        others = [self.fetch(other) for other in guard.others]
        return guard.condition.format(self.fetch(guard.source), *names, others=others, every=", ".join(others))


def inline_literal(value: Any) -> str | None:
    """The text of a small constant, which reads better in place than by name."""
    if type(value) is type and getattr(builtins, value.__name__, None) is value:
        return value.__name__
    text = literal(value) if type(value) in (int, str, bool, type(None)) else None
    return text if text is not None and len(text) < 40 else None


OUR_NAMES = frozenset("torch GUARD_ERRORS truth item error failure trace context before blocks".split())


def same_float(value: Any, expected: float) -> bool:
    """Equality of floats that also tells NaN and signed zeros apart."""
    return type(value) is float and (value == expected or (value != value and expected != expected)) and (
        value != 0 or str(value) == str(expected))


@dataclasses.dataclass
class Lasting:
    """Guards that need not be tested as long as some modules stay as they are.

    Attributes:
        roots, tables, owners: the modules; the dictionaries, and the objects with a type and a `__dict__`, read below them.
        within: identities of these guards, and of the guards on tensors that are found below the modules.
        behind: identities of other guards that can only be tested after them.
        trees: remembers for which modules they held (`module_trees.ModuleTrees`).
    """

    roots: list[Source]
    tables: list[Source]
    owners: list[Source]
    within: set[int]
    behind: set[int]
    trees: Any


def write_guards(writer: Writer, guards: list[Guard | TensorGuard], state: tuple[Any, ...], line: Callable[[str], str],
                 lasting: Lasting | None = None, later: Sequence[str] = ()) -> list[str]:
    """Statements that test all guards: tensors at once near the end, then what is assumed of their sizes.

    `later` are the lines that follow, with variables that they need and may set again.
    """
    lines = writer.lines
    lines.append(line(f"torch_state() == {writer.constant(state, 'state')}"))
    tensors = [guard for guard in guards if isinstance(guard, TensorGuard)]
    now = [guard for guard in guards if guard.kind not in LATE]
    if lasting is not None:
        within, behind = lasting.within, lasting.behind
        write_conditions(writer, [guard for guard in now if id(guard) not in within and id(guard) not in behind], line)
        for source in lasting.roots:
            writer.fetch(source)
        start = len(lines)
        write_conditions(writer, [guard for guard in now if id(guard) in within], line)
        for source in (*lasting.tables, *lasting.owners):
            writer.fetch(source)
        end = len(lines)
        now = [guard for guard in now if id(guard) in behind]
    write_conditions(writer, now, line)
    if tensors:
        unique = list({id(guard.tensor): guard for guard in tensors}.values())
        check = tensor_check(unique)
        names = ", ".join(writer.fetch(guard.source) for guard in unique)
        lines.append(line(f"{writer.constant(check, 'check_tensors')}({names})"))
    write_conditions(writer, [guard for guard in guards if guard.kind in LATE], line)
    if lasting is not None:
        known, behind_them = lines[start:end], lines[end:]
        lines[start:] = unless_unchanged(writer, lasting, known, [*behind_them, *later]) + behind_them
    return lines


def unless_unchanged(writer: Writer, lasting: Lasting, lines: list[str], later: list[str]) -> list[str]:
    """Statements that run `lines` on modules not known to be unchanged, and otherwise set the variables used later."""
    groups = lasting.roots, lasting.tables, lasting.owners
    roots, tables, owners = ("".join(f"{writer.fetch(source)}, " for source in group).rstrip() for group in groups)
    known = set(lines)
    words = set(re.findall(r"\w+", "\n".join(line for line in later if line not in known)))
    names = [name for name, equals, _ in (line.partition(" = ") for line in lines) if equals and name in words]
    values = "".join(f"{name}, " for name in names)
    read, begun = writer.unique("read_before"), writer.unique("begun")
    trees = writer.constant(lasting.trees, "modules")
    return [f"{read} = {trees}.unchanged({roots})", f"if {read} is None:",
            *(f"    {line}" for line in (f"{begun} = {trees}.begin({roots})", *lines,
                                         f"{trees}.keep({begun}, ({roots}), ({tables}), ({owners}), ({values}))")),
            *((f"else: {values.rstrip()} = {read}",) if names else ())]


def write_conditions(writer: Writer, guards: Sequence[Guard | TensorGuard], line: Callable[[str], str]) -> None:
    """Statements that test guards one by one; of tensors they only fetch them."""
    for guard in guards:
        if isinstance(guard, TensorGuard):
            writer.fetch(guard.source)
        else:
            writer.lines.append(line(writer.condition(guard)))


def tensor_check(guards: list[TensorGuard]) -> Callable[..., bool]:
    """The check of all tensors, in C++ and at once while they are at hand."""
    checks = [guard.check for guard in guards if guard.check is not None]
    if checks:
        return lambda *values: all(check(value) for check, value in zip(checks, values, strict=True))
    sizes = [list(guard.sizes) for guard in guards]
    strides = [list(guard.strides) for guard in guards]
    return torch_interface.TensorGuards(*[guard.tensor for guard in guards], dynamic_dims_sizes=sizes,
                                        dynamic_dims_strides=strides).check


class NoOverlap:
    """Whether no changed tensor shares its memory with another of the tensors, of which it is one.

    Parts of one storage that lie apart count as shared where gradients are computed (`tracked`): to autograd, what is written
    to one of them is a change of the others. Where they do not, and the tensors' layouts are guarded (`fixed`), those at the
    addresses of ones that were apart are apart, and storages need not be looked up.
    """

    def __init__(self, fixed: bool, tracked: bool) -> None:
        self._remembers, self._tracked = fixed and not tracked, tracked
        self._addresses_of_apart: list[int] = []

    def __call__(self, changed: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
        """The test."""
        addresses = list(map(torch.Tensor.data_ptr, others)) if self._remembers else []
        if addresses and addresses == self._addresses_of_apart:
            return True
        storages = [tensor.untyped_storage()._cdata for tensor in others]
        if len(set(storages)) < len(storages):
            sharing = collections.defaultdict(list)
            for tensor, storage in zip(others, storages, strict=True):
                sharing[storage].append(tensor)
            if any(self._reaches(tensor, sharing[tensor.untyped_storage()._cdata]) for tensor in changed):
                return False
        self._addresses_of_apart = addresses
        return True

    def _reaches(self, changed: torch.Tensor, sharing: list[torch.Tensor]) -> bool:
        """Whether the memory from a tensor's first to its last element holds any of another one."""
        if self._tracked or len(sharing) == 1:
            return len(sharing) > 1
        start, stop = memory_of(changed)
        spans = map(memory_of, sharing)
        return sum(start < last and first < stop for first, last in spans) > 1


def memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses at which a tensor's first element begins and its last one ends."""
    start = tensor.data_ptr()
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + ((steps + 1) * tensor.element_size() if tensor.numel() else 0)


def all_apart(count: int, objects: Sequence[Any]) -> bool:
    """Whether none of the first `count` objects is another one of them all."""
    first = set(map(id, objects[:count]))
    return len(first) == count and first.isdisjoint(map(id, objects[count:]))


def is_empty_cell(cell: Any) -> bool:
    """Whether a closure cell holds nothing."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


ALL_APART = "all_apart({1}, ({every}))"
LATE = ("shape", "overlap")  # kinds that are tested when the tensors are known to be what they were
GUARD_SCOPE = {"same_float": same_float, "all_apart": all_apart, "is_empty_cell": is_empty_cell,
               "math": math, "torch_state": torch_interface.torch_state}
"""What the text of guards may name."""
KEYWORDS = frozenset(keyword.kwlist) | frozenset(dir(builtins)) | OUR_NAMES | GUARD_SCOPE.keys()
