"""Operators on the symbolic stack: torch operations, native operations, or the special methods of user classes."""

import collections
import functools
import itertools
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from minicompile.capture.attributes import class_lookup, defines, get_attribute
from minicompile.capture.break_kinds import Break, RaisedInUserCode
from minicompile.capture.calls import KEY_WRAPPER, TORCH_NUMBERS, call, direct, invoke_special, method, run_native
from minicompile.capture.comparing import is_compared_in_python, refuse_objects, settled, standing, standing_inside
from minicompile.capture.comparing_rules import SETS, combined
from minicompile.capture.constant_tensors import known_value
from minicompile.capture.cpython_interface import HEAP_TYPE
from minicompile.capture.iteration import drain
from minicompile.capture.kinds import isinstance
from minicompile.capture.picks import picked
from minicompile.capture.side_effects import MISSING, NATIVE_BASES, elements, native_base, put
from minicompile.capture.symbolic_float import OPERANDS, SymbolicFloat, computed, in_python, real_of
from minicompile.capture.symbolic_size import SYMBOLIC, concrete, is_symbolic, known_number, spelled_out
from minicompile.capture.texts import check_printable
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import Tracer, overrides_torch
from minicompile.capture.values import (
    CONSTANT_TYPES,
    VALUES,
    TensorMethod,
    force,
    guard_absent,
    guard_filled,
    guard_present,
    guard_structure,
    is_outside,
    item_from_end,
    slot,
)
from minicompile.ir.fake_mode import surely

BINARY = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul", "&": "and",
    "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
COMPARISONS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"), "<=": (operator.le, "__le__", "__ge__"), "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"), ">": (operator.gt, "__gt__", "__lt__"), ">=": (operator.ge, "__ge__", "__le__"),
}
BITWISE = frozenset({"and", "or", "xor", "lshift", "rshift"})
NEVER_NEGATIVE = {operator.lt: False, operator.ge: True}
"""How a number that is not negative compares with one that is not positive, whichever they are."""
COMPARABLE = CONSTANT_TYPES | {torch.torch_version.TorchVersion, KEY_WRAPPER}
COMPARED_BY: dict[type, tuple[str, ...]] = {types.MethodType: ("__func__", "__self__"), TensorMethod: ("__name__", "__self__"),
                                            types.SimpleNamespace: ("__dict__",)}
NUMBERS = (int, float, *SYMBOLIC)
VIEWS = (type({}.keys()), type({}.items()))


def is_native(value: Any) -> bool:
    """Whether Python's own operators may run on a value."""
    kind = type(value)
    return kind in CONSTANT_TYPES or isinstance(value, NATIVE_BASES) or is_symbolic(value)


def operator_functions(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Python's function of a binary operator, and the one that works in place."""
    return getattr(operator, f"__{name}__"), getattr(operator, f"__i{name}__")


def is_of_numpy(value: Any) -> bool:
    """Whether an object is one of NumPy's."""
    return type(value).__module__.partition(".")[0] == "numpy"


def binary(tracer: Tracer, symbol: str, left: Any, right: Any) -> Any:
    """`left symbol right`; a trailing `=` means in place."""
    in_place = symbol.endswith("=")
    name = BINARY[symbol.removesuffix("=")]
    function, in_place_function = operator_functions(name)
    if in_place and type(left) not in (*CONSTANT_TYPES, *SYMBOLIC) and not (name == "matmul" and isinstance(left, FakeTensor)):
        function = in_place_function  # a graph takes its left operand for changed, as by `x @= y` it is not
    if isinstance(left, FakeTensor) or isinstance(right, FakeTensor):
        others = (list, dict, str, bytes)
        if all(isinstance(one, FakeTensor) or is_native(one) and not isinstance(one, others) for one in (left, right)):
            return tracer.operation("call_function", function, (left, right))
    kind_left, kind_right = type(left), type(right)
    if kind_left in CONSTANT_TYPES and kind_right in CONSTANT_TYPES:
        if symbol == "**" and isinstance(right, int) and abs(right) > 10000:
            raise Break("unsupported value", "a very large power")
        return run_native(tracer, in_place_function if in_place else function, (left, right), {})  # whose errors name it
    if isinstance(left, (str, bytes)):
        if name == "mod":
            check_printable(tracer, right)
        right = spelled_out(right)
    if isinstance(left, FakeTensor) and hasattr(type(right), "__torch_function__"):
        return tracer.operation("call_function", function, (left, right))
    result = user_binary(tracer, name, left, right, in_place)
    if result is not NotImplemented:
        return result
    if overrides_torch(left) and isinstance(right, FakeTensor):
        return tracer.operation("call_function", function, (left, right))
    for value in (left, right):
        force(tracer, value, False)
        if not is_native(value) and not isinstance(value, (FakeTensor, type, types.GenericAlias, types.UnionType, *VALUES)):
            if is_outside(tracer, value) or is_of_numpy(value):
                kind = "NumPy" if is_of_numpy(value) else "unsupported value"
                raise Break(kind, f"`{symbol}` on an object of type {type(value).__name__}")
    if is_symbolic(right) and name in ("truediv", "floordiv", "mod") and right == 0:
        left, right = concrete(left), concrete(right)  # Python raises the error
    left, right = exact_operands(tracer, name, left, right)
    # Kernels have no such power, and no bits of sizes.
    by_python = name in BITWISE or name == "pow" and is_power_for_python(left, right) or is_long(left) or is_long(right)
    by_python = by_python or name == "floordiv" and is_quotient_for_python(left, right)
    if by_python and type(left) in OPERANDS and type(right) in OPERANDS:
        return run_native(tracer, computed, (tracer, function, (left, right)), {}, False)
    if name == "mod" and type(right) is int and right > 1 and is_missing(left):
        return tracer.dynamic.remainder(tracer, left, right)
    if isinstance(left, SETS) and isinstance(right, SETS):
        return combined(tracer, function, left, (right,))
    refuse_objects(tracer, *(list(item) for item in (left, right) if isinstance(item, (set, frozenset, dict, *VIEWS))))
    result = run_native(tracer, function, (unhelpful(left), unhelpful(right)), {})
    return result if result is left else tracer.made(result)


def is_power_for_python(base: Any, exponent: Any) -> bool:
    """Whether PyTorch has no such power of numbers that vary: by such an integer, or of a negative one by a float."""
    return type(exponent) is torch.SymInt or type(base) is torch.SymInt and type(exponent) is float and base < 0


def is_quotient_for_python(above: Any, below: Any) -> bool:
    """Whether PyTorch may be wrong: it takes `n // 3 // -3` for `n // -9`, which holds for positive numbers only."""
    kinds = type(above), type(below)
    return kinds in ((torch.SymInt, int), (torch.SymInt,) * 2) and above.node.expr.has(FloorDiv) and not surely(below > 0)


def unhelpful(value: Any) -> Any:
    """The operand for native code: an object whose special methods have had their turn is replaced by one that has none."""
    kind = type(value)
    if is_native(value) or isinstance(value, (FakeTensor, type)) or kind.__module__.startswith("minicompile.capture"):
        return value
    makers = {base.__new__ for base in kind.__mro__} - {object.__new__}
    asked = kind.__flags__ & HEAP_TYPE and all(isinstance(maker, types.FunctionType) for maker in makers)
    return type(kind.__name__, (), {})() if asked else value


def is_long(number: Any) -> bool:
    """Whether an expression over sizes has grown so long, mostly in a loop, that algebra on it would soon take for ever."""
    parts = sympy.preorder_traversal(number.node.expr) if type(number) is torch.SymInt else ()
    return sum(1 for _ in itertools.islice(parts, LONGEST)) == LONGEST


LONGEST = 40


def is_missing(number: Any) -> bool:
    """Whether the remainder of a number is the padding of a size up to a multiple: `-n % 4`, `(4 - n % 4) % 4`."""
    expression = number.node.expr if type(number) is torch.SymInt else sympy.Integer(0)
    return bool(expression.is_negative or expression.has(Mod, PythonMod))


def exact_operands(tracer: Tracer, name: str, left: Any, right: Any) -> tuple[Any, Any]:
    """The operands of an operator; those that algebra over sizes would not compute to the bit as Python does, in Python."""
    left, right = (int(item) if type(item) is bool else known_number(item) for item in (left, right))
    kinds = {type(left), type(right)}
    if torch.SymInt in kinds and float in kinds:
        number = left if type(left) is float else right
        if name in ("floordiv", "mod") or number == 0 or not math.isfinite(number):
            # As Python's operators do with an integer beside a float.
            left, right = (torch.sym_float(item) if type(item) is torch.SymInt else item for item in (left, right))
    if torch.SymFloat in {type(left), type(right)}:
        left, right = in_python(tracer, left), in_python(tracer, right)
    return left, right


def user_binary(tracer: Tracer, name: str, left: Any, right: Any, in_place: bool) -> Any:
    """The special methods of user classes for a binary operator, in Python's order."""
    if isinstance(left, FakeTensor) and isinstance(right, int | float | complex):
        return NotImplemented  # the tensor does not leave it to a number, of whatever class
    attempts: list[tuple[Any, str, Any]] = [(left, f"__{name}__", right), (right, f"__r{name}__", left)]
    first, second = (class_lookup(tracer, type(one), f"__r{name}__")[0] for one in (left, right))
    if type(left) in type(right).__mro__ and first is not second:
        attempts.reverse()
    if in_place:
        attempts.insert(0, (left, f"__i{name}__", right))
    for owner, special, other in attempts:
        if special.startswith("__r") and type(left) is type(right):
            continue
        result = invoke_special(tracer, owner, special, other)
        if result is not MISSING and result is not NotImplemented:
            return result
    return NotImplemented


def unary(tracer: Tracer, name: str, value: Any) -> Any:
    """`-value`, `+value` or `~value`."""
    if isinstance(value, FakeTensor):
        return tracer.operation("call_function", getattr(operator, name), (value,))
    result = invoke_special(tracer, value, f"__{name}__")
    if result is not MISSING:
        return result
    if is_of_numpy(value) and not is_native(value):
        raise Break("NumPy", f"an operator on an object of type {type(value).__name__}")
    return run_native(tracer, getattr(operator, name), (unhelpful(value),), {})


def compare(tracer: Tracer, symbol: str, left: Any, right: Any) -> Any:
    """A rich comparison."""
    function, method, reflected = COMPARISONS[symbol]
    left, right = comparable(left, right)
    if isinstance(left, FakeTensor) or isinstance(right, FakeTensor):
        other = right if isinstance(left, FakeTensor) else left
        if other is None or isinstance(other, (str, type)):
            return run_native(tracer, function, (None, 0) if symbol in ("==", "!=") else (left, right), {})
        if overrides_torch(left):
            raise Break("unsupported argument", f"`{symbol}` of an object that overrides torch functions")
        return tracer.operation("call_function", function, (left, right))
    if type(left) in COMPARABLE and type(right) in COMPARABLE:
        return run_native(tracer, function, (left, right), {})
    if symbol in ("==", "!=") and type(left) is type(right) and type(left) in COMPARED_BY:
        pairs = [[get_attribute(tracer, one, name) for one in (left, right)] for name in COMPARED_BY[type(left)]]
        return all(is_same(tracer, *pair) or name != "__self__" and truth(tracer, compare(tracer, "==", *pair))
                   for name, pair in zip(COMPARED_BY[type(left)], pairs, strict=True)) is (symbol == "==")
    attempts = [(left, method, right), (right, reflected, left)]
    if type(right) is not type(left) and type(left) in type(right).__mro__:
        attempts.reverse()
    for owner, name, other in attempts:
        result = invoke_special(tracer, owner, name, other)
        if result is MISSING and name == "__ne__" and type(owner).__ne__ is object.__ne__:
            equal = invoke_special(tracer, owner, "__eq__", other)
            result = equal if equal is MISSING or equal is NotImplemented else not truth(tracer, equal)
        if result is not MISSING and result is not NotImplemented:
            return result
    for value in (left, right):
        force(tracer, value)
        if is_of_numpy(value):
            raise Break("NumPy", "a comparison with a NumPy value")
    if symbol in ("==", "!=") and not (is_native(left) and is_native(right)):
        note_identity(tracer, left, right)
    if symbol in ("==", "!=") and left is right and unhelpful(left) is not left:
        return symbol == "=="
    if is_symbolic(left) or is_symbolic(right):
        left, right = plain_number(left), plain_number(right)
    return run_native(tracer, function, (unhelpful(standing_inside(tracer, left)), unhelpful(standing_inside(tracer, right))), {})


def comparable(left: Any, right: Any) -> tuple[Any, Any]:
    """Two operands as numbers that vary can be compared: with integers for truths; beside infinity or NaN, any number will do."""
    if type(left) not in TORCH_NUMBERS and type(right) not in TORCH_NUMBERS:
        return left, right
    endless = any(type(item) is float and not math.isfinite(item) for item in (left, right))
    left, right = (int(item) if type(item) is bool else real_of(item) if endless else item for item in (left, right))
    return left, right


def plain_number(value: Any) -> Any:
    """The value of a number of a subclass of `int` or `float`, which numbers that vary do not know; anything else as it is."""
    base = next((base for base in (int, float) if isinstance(value, base) and type(value) is not bool), None)
    return value if base is None else base.__pos__(value)


def note_identity(tracer: Tracer, left: Any, right: Any) -> None:
    """Guard that two objects from outside stay different (or the same) when their identity was compared."""
    first, second = tracer.sources.get(id(left)), tracer.sources.get(id(right))
    if first is not None and second is not None and left is not right and first.parent is not None:
        if not isinstance(left, type) and not isinstance(right, type):
            tracer.guards.different(first, second)


def is_same(tracer: Tracer, left: Any, right: Any) -> bool:
    """`left is right`."""
    if left is right:
        return True
    if type(left) is SymbolicFloat is type(right):
        return left.fix() is right.fix()
    if is_symbolic(left) and isinstance(right, NUMBERS) or is_symbolic(right) and isinstance(left, NUMBERS):
        return concrete(left) is concrete(right)
    note_identity(tracer, left, right)
    return False


def truth_of_chance(tracer: Tracer, value: torch.Tensor) -> bool | None:
    """The truth of `torch.rand([]) < p` where `p` is not positive (layers that are never skipped), which no number decides."""
    entry = tracer.graph.traced.get(id(value))
    if entry is None or entry.node is None or entry.node.target not in NEVER_NEGATIVE or value.numel() != 1:
        return None
    arguments: Any = entry.node.args
    drawn, limit = arguments
    if type(limit) not in (int, float) or not limit <= 0 or getattr(drawn, "target", None) is not torch.rand:
        return None
    untouched = list(drawn.users) == [entry.node] and "out" not in drawn.kwargs
    return NEVER_NEGATIVE[entry.node.target] if untouched else None


def truth(tracer: Tracer, value: Any) -> bool:
    """The truth of a value."""
    kind = type(value)
    if kind in CONSTANT_TYPES or is_symbolic(value):
        return bool(value)
    if isinstance(value, FakeTensor):
        known = truth_of_chance(tracer, value)
        known = known_value(tracer, value, "__bool__") if known is None else known
        if known is MISSING:
            raise Break("branch on a tensor", "Python asks whether a tensor is true")
        return bool(known)
    if isinstance(value, NATIVE_BASES) and not (defines(tracer, kind, "__bool__") or defines(tracer, kind, "__len__")):
        guard_filled(tracer, value)
        return len(value) > 0
    result = invoke_special(tracer, value, "__bool__")
    if result is not MISSING:
        return result if type(result) is bool else judged(tracer, bool, "__bool__", concrete(result))
    result = invoke_special(tracer, value, "__len__")
    if result is not MISSING:
        return bool(judged(tracer, len, "__len__", result))
    if is_of_numpy(value):
        raise Break("NumPy", "the truth of a NumPy value")
    if any(name in vars(base) for base in kind.__mro__ for name in ("__bool__", "__len__")):
        if is_outside(tracer, value) and not isinstance(value, VALUES):
            raise Break("unsupported value", f"the truth of an object of type {kind.__name__}")
        return bool(run_native(tracer, bool, (value,), {}))
    return True


def judged(tracer: Tracer, function: Any, name: str, answer: Any) -> Any:
    """What a builtin makes of the answer of a special method that it asked."""
    if type(answer) in (int, torch.SymInt) and function is len and answer >= 0:
        return answer
    answer = concrete(answer)
    return run_native(tracer, function, (type("Answer", (), {name: lambda self: answer})(),), {})


def contains(tracer: Tracer, item: Any, container: Any) -> Any:
    """`item in container`."""
    result = invoke_special(tracer, container, "__contains__", item)
    if result is not MISSING:
        return truth(tracer, result)
    if isinstance(container, FakeTensor):
        raise Break("tensor value", "`in` on a tensor")
    if isinstance(container, NATIVE_BASES):
        return native_contains(tracer, item, container)
    if isinstance(container, type) or cannot(container, "__iter__") and cannot(container, "__getitem__") or (
            type(container) is VIEWS[0] and standing(tracer, item) is item):
        return run_native(tracer, operator.contains, (container, item), {})
    return any(element is item or truth(tracer, compare(tracer, "==", element, item)) for element in drain(tracer, container))


def native_contains(tracer: Tracer, item: Any, container: Any) -> bool:
    """`item in container` for a builtin container."""
    if isinstance(container, (dict, set, frozenset)):
        item = concrete(item)  # symbolic numbers have no hash
    if isinstance(container, dict):
        force(tracer, item)
        item = settled(tracer, container, item)
        found = bool(run_native(tracer, dict.__contains__, (container, item), {}))
        (guard_present if found else guard_absent)(tracer, container, item)
        return found
    if isinstance(container, (list, tuple, collections.deque)):
        force(tracer, container)
        for element in elements(container):
            if element is item:
                return True
            if isinstance(element, FakeTensor) or isinstance(item, FakeTensor):
                other = item if isinstance(element, FakeTensor) else element
                if isinstance(other, (FakeTensor, complex, *NUMBERS)) or type(other).__module__ == "numpy":
                    raise Break("tensor value", "tensors are compared to find one in a container")
                continue
            if truth(tracer, compare(tracer, "==", element, item)):
                return True
        return False
    if isinstance(container, (set, frozenset)):
        item = settled(tracer, container, item)
    elif is_compared_in_python(item):
        refuse_objects(tracer, item)
    return bool(run_native(tracer, operator.contains, (container, item), {}))


INDEXED = (list, tuple, str, bytes, range, collections.deque)


def as_index(tracer: Tracer, key: Any, owner: Any = None) -> Any:
    """A subscript (of `owner`) with the numbers that its objects stand for (`__index__` written in Python)."""
    kind = type(key)
    if isinstance(key, int | str):
        return key
    if kind is tuple:
        return tuple(as_index(tracer, item, owner) for item in key)
    if kind is slice:
        return slice(as_index(tracer, key.start), as_index(tracer, key.stop), as_index(tracer, key.step))
    if isinstance(owner, FakeTensor) and hasattr(kind, "__getitem__"):  # which PyTorch takes for a sequence
        return key
    result = invoke_special(tracer, key, "__index__")
    return key if result is MISSING else result


def get_item(tracer: Tracer, owner: Any, key: Any) -> Any:
    """`owner[key]`."""
    if isinstance(owner, FakeTensor):
        key = as_index(tracer, key, owner)
        force(tracer, key)
        copy = picked(tracer, owner, key)
        return tracer.operation("call_function", operator.getitem, (owner, key)) if copy is MISSING else copy
    result = invoke_special(tracer, owner, "__getitem__", key)
    if result is not MISSING:
        return result
    if isinstance(owner, NATIVE_BASES) and not isinstance(owner, SETS):
        return native_item(tracer, owner, key)
    if isinstance(owner, type):
        method, base = class_lookup(tracer, owner, "__class_getitem__")
        raw = method.__func__ if isinstance(method, classmethod) else None
        if isinstance(raw, types.FunctionType) and owner.__module__ != "typing":
            return call(tracer, get_attribute(tracer, owner, "__class_getitem__"), (key,), {})
        return run_native(tracer, operator.getitem, (owner, key), {})
    if type(owner).__module__ in ("re", "typing", "types", "_weakref") or (
            isinstance(owner, types.MappingProxyType) and not is_outside(tracer, owner)):
        return run_native(tracer, operator.getitem, (owner, key), {})
    if is_of_numpy(owner):
        raise Break("NumPy", "a NumPy array is indexed")
    if type(owner) in CONSTANT_TYPES or cannot(owner, "__getitem__"):
        return run_native(tracer, operator.getitem, (concrete(owner), key), {})
    raise Break("unsupported value", f"an object of type {type(owner).__name__} is indexed")


def cannot(owner: Any, method: str) -> bool:
    """Whether Python refuses what a special method does, because there is none; of our own objects it cannot be told."""
    return not hasattr(type(owner), method) and not type(owner).__module__.startswith("minicompile.capture")


def look_up(tracer: Tracer, table: dict[Any, Any], key: Any) -> Any:
    """An entry of a dictionary, or MISSING and a guard that it is absent."""
    force(tracer, key)
    key = settled(tracer, table, key)
    if run_native(tracer, dict.__contains__, (table, key), {}):
        return slot(tracer, table, key)
    guard_absent(tracer, table, key)
    return MISSING


def native_item(tracer: Tracer, owner: Any, key: Any) -> Any:
    """`owner[key]` for a builtin container."""
    key = concrete(as_index(tracer, key) if isinstance(owner, INDEXED) else key)
    if isinstance(key, FakeTensor) and not isinstance(owner, dict):
        raise Break("tensor value", "a tensor is used as an index of a Python container")
    if isinstance(owner, dict):
        value = look_up(tracer, owner, key)
        if value is not MISSING:
            return value
        if defines(tracer, type(owner), "__missing__"):
            return call(tracer, get_attribute(tracer, owner, "__missing__"), (key,), {})
        if isinstance(owner, collections.defaultdict) and owner.default_factory is not None:
            value = call(tracer, owner.default_factory, (), {})
            put(owner, key, value)
            return value
        raise RaisedInUserCode(KeyError(key))
    if isinstance(owner, list) and type(key) is int:
        value = item_from_end(tracer, owner, key)
        if value is not MISSING:
            return value
        count = list.__len__(owner)
        if not 0 <= key < count:
            guard_structure(tracer, owner)
        if not -count <= key < count:
            run_native(tracer, list.__getitem__, (owner, key), {})  # raises
        return slot(tracer, owner, key)
    force(tracer, owner, False)
    reader: Any = native_base(owner) if defines(tracer, type(owner), "__getitem__") else type(owner)
    result = run_native(tracer, functools.partial(reader.__getitem__, owner, key), (), {})
    if type(key) is slice and not isinstance(owner, (str, bytes, range)):
        return tracer.made(result)
    return tracer.resolve(result)


def insert(tracer: Tracer, table: Any, key: Any, *value: Any) -> None:
    """Put a key and its value, or an element, into a hash table made while tracing."""
    insertion = functools.partial(put if value else set.add, table, settled(tracer, table, key), *value)
    run_native(tracer, insertion, (), {}, False)  # a symbolic value stays one


def set_item(tracer: Tracer, owner: Any, key: Any, value: Any) -> None:
    """`owner[key] = value`."""
    if isinstance(owner, FakeTensor):
        key = as_index(tracer, key, owner)
        force(tracer, key)
        tracer.operation("call_function", operator.setitem, (owner, key, value))
        return
    if invoke_special(tracer, owner, "__setitem__", key, value) is not MISSING:
        return
    key = concrete(as_index(tracer, key) if isinstance(owner, INDEXED) else key)
    if isinstance(owner, dict):
        key = settled(tracer, owner, key)
        if not run_native(tracer, dict.__contains__, (owner, key), {}):
            guard_absent(tracer, owner, key)
        run_native(tracer, functools.partial(type(owner).__setitem__, owner, key, value), (), {})
    elif isinstance(owner, (list, collections.deque)):
        guard_structure(tracer, owner)
        if type(key) is slice and hasattr(type(value), "__iter__"):
            value = list(drain(tracer, value))
        run_native(tracer, functools.partial(operator.setitem, owner, key, value), (), {})
    elif is_native(owner) or cannot(owner, "__setitem__"):
        run_native(tracer, operator.setitem, (owner, key, value), {})
    else:
        kind = "NumPy" if is_of_numpy(owner) else "unsupported value"
        raise Break(kind, f"an item of an object of type {type(owner).__name__} is set")


def delete_item(tracer: Tracer, owner: Any, key: Any) -> None:
    """`del owner[key]`."""
    if invoke_special(tracer, owner, "__delitem__", key) is not MISSING:
        return
    key = concrete(as_index(tracer, key) if isinstance(owner, INDEXED) else key)
    if is_native(owner) and not isinstance(owner, (dict, list, collections.deque)) or cannot(owner, "__delitem__"):
        run_native(tracer, operator.delitem, (owner, key), {})
    if not isinstance(owner, (dict, list, collections.deque)):
        raise Break("unsupported value", f"an item of an object of type {type(owner).__name__} is deleted")
    if isinstance(owner, dict):
        key = settled(tracer, owner, key)
        (guard_present if dict.__contains__(owner, key) else guard_absent)(tracer, owner, key)
    else:
        guard_structure(tracer, owner)
    run_native(tracer, operator.delitem, (owner, key), {})


def truth_over(tracer: Tracer, iterable: Any, stop_at: bool) -> bool:
    """`any` (stops at a true element) or `all` (stops at a false one)."""
    return any(truth(tracer, item) is stop_at for item in drain(tracer, iterable)) is stop_at


method((dict, list, tuple, str, bytes, range, collections.deque), "__getitem__")(
    lambda tracer, owner, args, kwargs: native_item(tracer, owner, args[0]))
method((dict, list, tuple, str, bytes, range, set, frozenset, collections.deque), "__contains__")(
    lambda tracer, owner, args, kwargs: native_contains(tracer, args[0], owner))
direct({
    bool: lambda tracer, value=False: truth(tracer, value),
    any: lambda tracer, items: truth_over(tracer, items, True), all: lambda tracer, items: truth_over(tracer, items, False),
    operator.getitem: get_item, operator.setitem: set_item, operator.delitem: delete_item,
    operator.contains: lambda tracer, container, item: contains(tracer, item, container),
    operator.truth: truth, operator.not_: lambda tracer, value: not truth(tracer, value),
    operator.is_: is_same, operator.is_not: lambda tracer, left, right: not is_same(tracer, left, right),
    **{getattr(operator, name): lambda tracer, value, name=name: unary(tracer, name, value) for name in ("neg", "pos", "invert")},
    **{function: lambda tracer, left, right, symbol=symbol: compare(tracer, symbol, left, right)
       for symbol, (function, _, _) in COMPARISONS.items()},
    **{function: lambda tracer, left, right, symbol=symbol + ending: binary(tracer, symbol, left, right)
       for symbol, name in BINARY.items() for function, ending in zip(operator_functions(name), ("", "="), strict=True)},
})
