"""Which local variables may still be read after an instruction. Must not know about values, only about names."""

from minicompile.capture.instruction import Program

READS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST", "LOAD_CLOSURE",
                   "LOAD_FROM_DICT_OR_DEREF"})
WRITES = frozenset({"STORE_FAST"})
ENDS = frozenset({"RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
                  "JUMP_BACKWARD_NO_INTERRUPT"})


def successors(program: Program, index: int) -> list[int]:
    """Where control may go after the instruction at `index`."""
    instruction = program.instructions[index]
    following = [] if instruction.name in ENDS else [index + 1]
    if instruction.target >= 0:
        following.append(instruction.target)
    handler = program.handler_of(index)
    if handler is not None:
        following.append(handler.target)
    return [place for place in following if place < len(program.instructions)]


def reads_all_variables(program: Program) -> bool:
    """Whether a function calls what may look at its variables by name."""
    readers = ("locals", "vars", "dir", "eval", "exec")
    return any(step.name == "LOAD_GLOBAL" and step.value in readers for step in program.instructions)


def live_locals(program: Program, start: int) -> frozenset[str]:
    """Names of fast locals that may be read on some path from `start` before they are written."""
    reachable, waiting = set(), [start]
    while waiting:
        index = waiting.pop()
        if index not in reachable:
            reachable.add(index)
            waiting.extend(successors(program, index))
    live: dict[int, frozenset[str]] = {index: frozenset() for index in reachable}
    order = sorted(reachable, reverse=True)
    changed = True
    while changed:
        changed = False
        for index in order:
            instruction = program.instructions[index]
            after = frozenset().union(*(live[place] for place in successors(program, index)))
            before = after
            if instruction.name in READS:
                before = after | {instruction.value}
            elif instruction.name in WRITES and program.handler_of(index) is None:
                before = after - {instruction.value}
            if before != live[index]:
                live[index] = before
                changed = True
    return live[start]
