"""Cuts the outermost frame at one instruction: that instruction is written as Python, resume functions take over.

Must not run the user's code and must not assemble bytecode; `resume` does the latter.
"""

import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from minicompile.capture.break_kinds import CLASS_MADE, Break, LooksAtItsFrame, RunEager
from minicompile.capture.calls import COMPILED_MARK
from minicompile.capture.instruction import VERSION, Instruction
from minicompile.capture.kinds import isinstance
from minicompile.capture.native import BREAKING_MODULES
from minicompile.capture.opcodes import COMPUTED, DISPLAYS, EFFECTS, after_end_for, callable_slots, is_method_form
from minicompile.capture.opcodes_calls import call_parts
from minicompile.capture.reconstruct import Emitter
from minicompile.capture.resume import one_instruction
from minicompile.capture.side_effects import Lazy
from minicompile.capture.tracer import NULL, Frame, Handling, Tracer
from minicompile.capture.user_line import call_at, looks_at_callers, seen_from_user_lines, with_user_line

Lines = list[str]
TESTS = {"IF_TRUE": "{0}", "IF_FALSE": "not {0}", "IF_NOT_NONE": "{0} is not None", "IF_NONE": "{0} is None"}
# Functions that look at the frame that calls them, when they get at most so many arguments.
READS_ITS_CALLER = ((locals, 0), (vars, 0), (dir, 0), (eval, 1), (exec, 1), (sys._getframe, 1), (inspect.currentframe, 0),
                    (inspect.stack, 1))


class Step:
    """One instruction written as Python.

    Attributes:
        operands: how many stack elements it takes.
        lines: statements that execute it.
        pushes: expressions for what it pushes (`None` for an empty slot).
    """

    def __init__(self, operands: int, lines: Lines, pushes: list[str | None]) -> None:
        self.operands, self.lines, self.pushes = operands, lines, pushes


class Cutter:
    """Writes the end of a frame that was cut."""

    def __init__(self, tracer: Tracer, frame: Frame, stop: Break, emitter: Emitter,
                 call_compiled: Callable[..., Any]) -> None:
        self.tracer, self.frame, self.stop, self.emitter = tracer, frame, stop, emitter
        self.call_compiled, self.goes_elsewhere = call_compiled, False
        self.program = frame.program
        self.instruction: Instruction = self.program.instructions[frame.index]

    def write(self) -> list[str]:
        """The statements from the side effects on; the last one returns."""
        frame, instruction = self.frame, self.instruction
        name = instruction.name
        if name == "FOR_ITER":
            frame.begin_loop(frame.index)
        self.emitter.hold_generators(frame)
        if "JUMP_IF_" in name or name.startswith("POP_JUMP_"):
            return self.write_branch()
        if name == "FOR_ITER":
            return self.write_for_iter()
        if name == "RAISE_VARARGS":
            base = frame.stack[: len(frame.stack) - instruction.arg]
            self.save(base)
            return self.at_user_line([f"raise {' from '.join(self.operands(instruction.arg))}"], base)
        step = self.step()
        base = frame.stack[: len(frame.stack) - step.operands]
        self.save(base, frame.index + 1)
        return [*self.at_user_line(step.lines, base), self.resume(frame.index + 1, base, step.pushes)]

    def at_user_line(self, lines: Lines, base: list[Any]) -> Lines:
        """Statements whose exceptions have the user's line and go to the user's handler if there is one."""
        if not lines:
            return []
        place = self.emitter.constant(functools.partial(with_user_line, self.frame.code, self.instruction.line), "user_line")
        handled = self.frame.handled()
        if handled is not None:
            lines = while_handling(self.emitter.value(handled), lines)
        if self.program.handler_of(self.frame.index) is None:
            dropped = [f"    del {self.emitter.value(value)}.generator" for value in base if self.emitter.is_held(value)]
            return ["try:", *indented(lines), "except BaseException as error:", *reversed(dropped), f"    raise {place}(error)"]
        return ["failure = None", "try:", *indented(lines), "except BaseException as error:", f"    failure = {place}(error)",
                "if failure is not None:", f"    {self.resume(self.frame.index, base, [], raised='failure')}"]

    def save(self, base: list[Any], *places: int) -> None:
        """Build the stack and the locals that are live at some instructions before the cut one runs."""
        for index in places:
            self.emitter.frame_state(self.frame, index, base)

    def resume(self, index: int, base: list[Any], pushes: list[str | None], raised: str = "") -> str:
        """The statement that calls a resume function."""
        eager = self.emitter.makes_classes or self.stop.reason == CLASS_MADE and not self.goes_elsewhere
        return f"return {self.emitter.resumption(self.frame, index, base, pushes, raised, eager=eager)}"

    def write_branch(self) -> list[str]:
        """A jump on a value that only exists at run time."""
        frame, instruction = self.frame, self.instruction
        base, condition = frame.stack[:-1], self.emitter.value(frame.stack[-1])
        keeps = "OR_POP" in instruction.name
        test = next(form for ending, form in TESTS.items() if ending in instruction.name).format(condition)
        self.save(base, instruction.target, frame.index + 1)
        taken = self.resume(instruction.target, base, [condition] if keeps else [])
        lines = self.at_user_line([f"truth = True if {test} else False"], base)
        return [*lines, "if truth:", f"    {taken}", self.resume(frame.index + 1, base, [])]

    def write_for_iter(self) -> list[str]:
        """One step of a loop over an iterator from outside."""
        frame, instruction = self.frame, self.instruction
        base = frame.stack[:-1]
        iterator = self.emitter.value(frame.stack[-1]) + ".generator" * self.emitter.is_held(frame.stack[-1])
        end = after_end_for(frame, instruction.target)
        self.save(base, end, frame.index + 1)
        missing = self.emitter.constant(NULL, "end")
        lines = self.at_user_line([f"item = next({iterator}, {missing})"], frame.stack)
        return [*lines, f"if item is {missing}:", f"    {self.resume(end, base, [])}",
                self.resume(frame.index + 1, frame.stack, ["item"])]

    def step(self) -> Step:
        """The instruction as Python statements."""
        rule = STEPS.get(self.instruction.name)
        if rule is None:
            raise RunEager(f"{self.stop.reason} (and {self.instruction.name} cannot be cut out)", self.stop.kind)
        return rule(self)

    def caller(self, function: Any, count: int) -> str:
        """The start of a call from the user's line, up to the function: through a cache of its own if the break is inside."""
        function = function.real if type(function) is Lazy else function
        if any(function is reader and count <= most for reader, most in READS_ITS_CALLER):
            raise LooksAtItsFrame(f"`{function.__name__}` looks at the frame that calls it", self.stop.kind)
        start = f"{self.user_line()}("
        if looks_at_callers(function):
            return f"{start}{self.emitter.constant(seen_from_user_lines, 'seen_from_user_lines')}, "
        if self.stop.depth > 1 and code_called_by(function) is not None and not self.emitter.makes_classes:
            self.goes_elsewhere = True
            return f"{start}{self.emitter.constant(self.call_compiled, 'call_compiled')}, "
        return start

    def user_line(self) -> str:
        """A function that calls its first argument from the user's line."""
        site = call_at(self.frame.code, self.instruction.line, self.frame.globals)
        return self.emitter.constant(site, "call_from_user_line")

    def operands(self, count: int) -> list[str]:
        """Expressions for the top `count` stack elements."""
        return [self.emitter.value(value) for value in self.frame.stack[len(self.frame.stack) - count :]]

    def filled(self, template: str, count: int) -> str:
        """A template with the operands, the instruction's name and, where it asks for it, the globals."""
        namespace = self.emitter.constant(self.frame.globals, "namespace") if "{namespace}" in template else ""
        return template.format(*self.operands(count), name=self.instruction.value, namespace=namespace)

    def result(self) -> str:
        """A variable for the instruction's result."""
        return self.emitter.writer.unique("result")


def code_called_by(function: Any) -> Any:
    """The key of the cache for a callee that is cut out of its caller: its code, or its class if that defines `__call__`.

    `None` for what is called as it is: what has been compiled, which has caches, what no single Python function stands
    for, classes and functions written in C, and libraries that run as they are.
    """
    target = function.__func__ if isinstance(function, types.MethodType) else function
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, types.FunctionType):
        package = str(target.__globals__.get("__name__")).partition(".")[0]
        return None if package in BREAKING_MODULES else target.__code__
    method = None if hasattr(type(target), COMPILED_MARK) else inspect.getattr_static(type(target), "__call__", None)
    return type(target) if isinstance(method, types.FunctionType) and not isinstance(target, type) else None


def indented(lines: Lines) -> Lines:
    """Statements one level deeper."""
    return [f"    {line}" for line in lines]


def while_handling(error: str, lines: Lines) -> Lines:
    """Statements that run while an exception is handled, which what they call may look at."""
    return [f"trace, context = {error}.__traceback__, {error}.__context__", "try:", f"    raise {error}",
            "except BaseException:", f"    {error}.__traceback__, {error}.__context__ = trace, context", *indented(lines)]


def with_exit_step(cutter: Cutter) -> Step:
    """The exit of a context manager, called with the exception that ended its block."""
    name, leave, error = cutter.result(), cutter.emitter.value(cutter.frame.stack[-4]), cutter.operands(1)[0]
    return Step(0, [f"{name} = {leave}(type({error}), {error}, {error}.__traceback__)"], [name])


def operand_count(at: Instruction) -> int:
    """How many values on top of the stack an instruction reads."""
    count, inside = OPERANDS[at.name], at.arg if at.name in DISPLAYS else 0
    return inside + (count if isinstance(count, int) else count(at.arg))


def text_step(template: str) -> Callable[[Cutter], Step]:
    """A step that evaluates an expression over its operands, or executes a statement if it pushes nothing."""

    def rule(cutter: Cutter) -> Step:
        at, name, count = cutter.instruction, cutter.result(), operand_count(cutter.instruction)
        text = cutter.filled(template, count)
        if at.name in EFFECTS:
            return Step(count, [text], [])
        return Step(count, [f"{name} = {text}"], list(callable_slots(name, None) if is_method_form(at) else (name,)))

    return rule


def call_step(cutter: Cutter) -> Step:
    """A call: of a compiled callee if the break is inside it, else as it is."""
    instruction = cutter.instruction
    function, args, kwargs = call_parts(cutter.frame, instruction, False)
    if function is super and not args:
        raise RunEager("`super()` cannot be cut out")
    name = cutter.result()
    parts = [cutter.emitter.value(item) for item in args]
    parts.extend(f"{key}={cutter.emitter.value(item)}" for key, item in kwargs.items())
    parts.insert(0, cutter.emitter.value(function))
    count = instruction.arg + 2 + (instruction.name == "CALL_KW")
    return Step(count, [f"{name} = {cutter.caller(function, len(args))}{', '.join(parts)})"], [name])


def call_ex_step(cutter: Cutter) -> Step:
    """`f(*args, **kwargs)`."""
    stack, has_keywords = cutter.frame.stack, cutter.instruction.arg & 1
    count = 3 + has_keywords
    top = stack[-count:]
    function = top[0] if VERSION >= (3, 13) else top[1]
    args = cutter.emitter.value(top[2])
    keywords = f", **{cutter.emitter.value(top[3])}" if has_keywords else ""
    name, target = cutter.result(), cutter.emitter.value(function)
    return Step(count, [f"{name} = {cutter.caller(function, 1)}{target}, *{args}{keywords})"], [name])


def executed_step(cutter: Cutter) -> Step:
    """A step that lets Python execute the instruction, among the globals of its frame: some import, or ask for the module."""
    at, taken = cutter.instruction, operand_count(cutter.instruction)
    code, operands = dis.opmap[at.name], cutter.frame.stack[len(cutter.frame.stack) - taken :]
    given = taken + dis.stack_effect(code, at.arg if code >= dis.HAVE_ARGUMENT else None)
    executed = types.FunctionType(one_instruction(at.name, at.arg, taken, given).__code__, cutter.frame.globals)
    function = cutter.emitter.constant(executed, at.name.lower())
    texts = ["None" if item is NULL else cutter.emitter.value(item) for item in operands]
    names = [cutter.result() for _ in range(given)]
    pushes = [None if place < taken and operands[place] is NULL else name for place, name in enumerate(names)]
    return Step(taken, [f"[{', '.join(names)}] = {function}({', '.join(texts)})"], pushes)


def group_match_step(cutter: Cutter) -> Step:
    """The match of an `except*` clause, executed by Python; what it catches is handled from there on."""
    stack, emitter, now = cutter.frame.stack, cutter.emitter, Handling(Exception())
    handled = emitter.memo[id(now.error)] = emitter.assign(emitter.value(stack[-5].error), "handled")
    emitter.alive.append(now.error)
    stack[-5] = now
    step = executed_step(cutter)
    step.lines.append(f"{handled} = {handled} if {step.pushes[1]} is None else {step.pushes[1]}")
    return step


def import_from_step(cutter: Cutter) -> Step:
    """`from module import name` of something not loaded."""
    name, (kept,), module = cutter.result(), cutter.operands(1), cutter.tracer.resolve(cutter.frame.stack[-1])
    return Step(1, [f"from {module.__name__} import {cutter.instruction.value} as {name}"], [kept, name])


OPERANDS: dict[str, int | Callable[[int], int]] = {
    **{name: count for table in (COMPUTED, EFFECTS, DISPLAYS) for name, (count, _) in table.items()},
    **dict.fromkeys(("BEFORE_WITH", "UNPACK_SEQUENCE", "UNPACK_EX", "GET_LEN", "MATCH_SEQUENCE", "MATCH_MAPPING"), 1),
    "MATCH_KEYS": 2, "CHECK_EG_MATCH": 2,
    "DICT_MERGE": 4 if VERSION >= (3, 13) else 3,  # its errors name the function that is called
}
STEPS: dict[str, Callable[[Cutter], Step]] = {
    **dict.fromkeys(OPERANDS, executed_step),
    "CALL": call_step, "CALL_KW": call_step, "CALL_FUNCTION_EX": call_ex_step, "WITH_EXCEPT_START": with_exit_step,
    "CHECK_EG_MATCH": group_match_step, "IMPORT_FROM": import_from_step,
    "IMPORT_NAME": text_step("__import__({name!r}, {namespace}, None, {1}, {0})"),
    "LOAD_DEREF": lambda cutter: text_step(
        f"{cutter.emitter.value(cutter.frame.cells[cutter.instruction.value])}.cell_contents")(cutter),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD"), lambda cutter: text_step(
        f"{cutter.user_line()}(getattr, {{0}}, {{name!r}})")(cutter)),
    "LOAD_SUPER_ATTR": text_step("{0}({1}, {2}).{name}"),
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME"), text_step("{namespace}[{name!r}]")),
    **dict.fromkeys(("STORE_GLOBAL", "STORE_NAME"), text_step("{namespace}[{name!r}] = {0}")),
    "DELETE_GLOBAL": text_step("del {namespace}[{name!r}]"),
    "POP_TOP": lambda cutter: Step(1, [f"del {cutter.operands(1)[0]}.generator"], []),
    "STORE_ATTR": text_step("{1}.{name} = {0}"), "DELETE_ATTR": text_step("del {0}.{name}"),
    "BINARY_SUBSCR": text_step("{0}[{1}]"), "STORE_SUBSCR": text_step("{1}[{2}] = {0}"),
}
