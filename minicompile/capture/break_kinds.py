"""The registry of everything that ends a graph: a name, what it means, and the rewrite that removes it.

Also the exceptions that travel inside the tracer. Must not import the tracer.
"""

import dataclasses

from minicompile.errors import Location


@dataclasses.dataclass(frozen=True)
class BreakKind:
    """What a kind of graph break means, and what to do about it."""

    explanation: str
    hint: str


KINDS: dict[str, BreakKind] = {
    "tensor value": BreakKind("Python needs the value of a tensor, which is only known when the graph has run",
                              "keep the value in a tensor; move `.item()` and conversions out of the compiled function"),
    "branch on a tensor": BreakKind("an `if`, `while`, `and`, `or` or `assert` asks for the truth of a tensor",
                                    "use `torch.where(condition, a, b)`, or decide before the compiled function"),
    "data-dependent shape": BreakKind("the shape of a result depends on the values in a tensor",
                                      "use a fixed shape with a mask (`torch.where`) instead of selecting elements"),
    "input or output": BreakKind("the call prints, logs, warns, or reads or writes files",
                                 "move it out of the compiled function, or decorate its function with "
                                 "`minicompile.disable`"),
    "unknown call": BreakKind("the callable is not written in Python and not known to be free of side effects",
                              "call it outside of the compiled function"),
    "disabled function": BreakKind("the function is marked with `disable`", "call it outside, or take the mark away"),
    "NumPy": BreakKind("NumPy arrays are not captured", "use the torch function of the same name"),
    "random seed": BreakKind("the call reads or sets the state of a random number generator",
                             "seed before the compiled function is called"),
    "optimizer": BreakKind("schedulers, gradient scalers and fused optimizers run as PyTorch wrote them",
                           "call them outside of the compiled function; leave out `fused=True`"),
    "random numbers": BreakKind("Python's random numbers differ from call to call", "draw them with torch, or outside"),
    "global torch setting": BreakKind("the call changes torch for the whole process", "do it outside"),
    "autograd call": BreakKind("the call works on the autograd graph, which exists only when the graph has run",
                               "call it outside of the compiled function"),
    "custom autograd function": BreakKind("a `torch.autograd.Function` runs its own backward",
                                          "write it with torch operations or as a `torch.library.custom_op`"),
    "checkpoint": BreakKind("this call of `torch.utils.checkpoint` does more than to mark what is computed again",
                            "pass `use_reentrant=False`, and keep side effects out of the checkpointed function"),
    "tensor hook": BreakKind("hooks on tensors run outside of the graph", "register it outside"),
    "recurrent network": BreakKind("LSTM, GRU and RNN layers run as the vendor's one kernel, with a workspace of its own",
                                   "compile the modules around the layer instead"),
    "real memory": BreakKind("the call looks at a tensor's memory", "do it outside of the compiled function"),
    "tensor subclass": BreakKind("only plain tensors and parameters are captured",
                                 "call `.as_subclass(torch.Tensor)` before the compiled function"),
    "sparse tensor": BreakKind("sparse tensors are not captured", "call `.to_dense()` before the compiled function"),
    "unsupported tensor": BreakKind("this kind of tensor is not captured",
                                    "convert it to a plain strided tensor before the compiled function"),
    "tensor attribute": BreakKind("the attribute of the tensor is not captured",
                                  "read or set it outside of the compiled function"),
    "nested compiler": BreakKind("the call compiles another function", "compile once, outside"),
    "torch.func transform": BreakKind("the transform of torch.func, or its function, does what a graph cannot hold",
                                      "compile the function inside of the transform"),
    "higher-order operator": BreakKind("the operator takes functions",
                                       "write the branches with `torch.where`, or call the operator outside"),
    "operation failed": BreakKind("the operation cannot be run on fake tensors; eager raises its own error",
                                  "run the function uncompiled to see whether the operation is valid"),
    "unsupported argument": BreakKind("an argument of a torch function cannot be part of a graph",
                                      "pass tensors, numbers and lists of them"),
    "unsupported instruction": BreakKind("the tracer has no rule for this instruction",
                                         "move the statement out of the compiled function"),
    "unsupported value": BreakKind("the tracer cannot follow this value",
                                   "make or read it outside, and pass in what is needed"),
    "iterator": BreakKind("an iterator from outside is advanced", "pass a list or a tuple"),
    "time": BreakKind("the clock differs from call to call", "measure outside of the compiled function"),
    "imports": BreakKind("a module that is not loaded yet is imported", "import it at the top of the file"),
    "asynchronous code": BreakKind("coroutines are not captured",
                                   "compile the functions that the coroutine calls"),
    "user object": BreakKind("a method of the object would run inside a C function",
                             "call the method itself, or use a plain key or number"),
    "recursion": BreakKind("the recursion is too deep to inline", "write it as a loop"),
    "shared memory": BreakKind("an input that is changed shares memory with another input", "clone one of them"),
}


CLASS_MADE = "a class is made"  # another one in each call: nothing that is captured behind it would fit a second one


class Control(Exception):
    """What travels up through the tracer, past whoever handles what the user's code raises."""


class Stop(Control):
    """Tracing cannot go on.

    Attributes:
        kind, reason, hint: why, and what to do about it; stack: the user's lines; depth: how many frames were active.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.hint = kind, reason, KINDS[kind].hint
        self.stack: tuple[Location, ...] = ()
        self.depth = 0


class Break(Stop):
    """The frame cannot go on symbolically at the current instruction."""

    of_intermediates = False


class RunEager(Stop):
    """The whole frame has to run in eager, which may be `expected`."""

    def __init__(self, reason: str, kind: str = "unsupported value", expected: bool = False) -> None:
        super().__init__(kind, reason)
        self.expected = expected


class LooksAtItsFrame(RunEager):
    """The frame looks at itself and its callers: these have to be the user's."""


class RaisedInUserCode(Control):
    """The user's code raised `value` while it was being traced, or raised it `again` as it was."""

    def __init__(self, value: BaseException, again: bool = False) -> None:
        super().__init__(value)
        self.value, self.again = value, again


class CutHere(Control):
    """The outermost frame has reached the instruction at which it is to be cut."""
