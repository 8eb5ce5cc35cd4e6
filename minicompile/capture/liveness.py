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


def reachable_from(program: Program, start: int) -> set[int]:
    """The instructions that may be executed from `start` on."""
    reachable, waiting = set[int](), [start]
    while waiting:
        index = waiting.pop()
        if index not in reachable and index < len(program.instructions):
            reachable.add(index)
            waiting.extend(successors(program, index))
    return reachable


def reads_all_variables(program: Program, start: int = 0) -> bool:
    """Whether a function, from `start` on, calls what may look at its variables by name."""
    steps, readers = program.instructions, ("locals", "vars", "dir", "eval", "exec")
    return any(steps[index].name == "LOAD_GLOBAL" and steps[index].value in readers for index in reachable_from(program, start))


def live_locals(program: Program, start: int) -> frozenset[str]:
    """Names of fast locals that may be read on some path from `start` before they are written."""
    reachable = reachable_from(program, start)
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
