"""Kernels that walk an axis in steps, once per *pass*: the reduction axis, or in a crossed kernel the rows.

The reductions of a pass depend only on results of earlier ones; what a later pass needs again it computes again from
its loads. A store into memory that the kernel also reads waits for the last pass that reads it. A crossed kernel has one pass:
each step folds whole rows, and adds to the column sums. This module must not choose what is folded together.
"""

from collections.abc import Callable

import torch

from minicompile.codegen.batched_kernel import write_batched_kernel
from minicompile.codegen.expression_writer import Scope, Value, index_axes
from minicompile.codegen.folds import fold_of
from minicompile.codegen.geometry import block_name, position_name, start_name
from minicompile.codegen.index_text import host
from minicompile.codegen.kernel_text import KernelContext, KernelText
from minicompile.codegen.triton_kernel import KernelWriter
from minicompile.codegen.triton_text import Text, call, triton_dtype
from minicompile.ir.expr import Expr, Load
from minicompile.ir.index import Axis
from minicompile.ir.loops import Loop, Reduction
from minicompile.ir.schedule import KernelGroup


def write_kernel(group: KernelGroup, name: str, context: KernelContext) -> KernelText:
    """The text of the kernel for `group`."""
    if group.batch:
        return write_batched_kernel(group, name, context)
    walks = group.tile.strategy in ("looped", "crossed")
    return (LoopedKernelWriter if walks else KernelWriter)(group, name, context).write()


class LoopedKernelWriter(KernelWriter):
    """Prints a kernel pass by pass."""

    def __init__(self, group: KernelGroup, name: str, context: KernelContext) -> None:
        super().__init__(group, name, context)
        tile = group.tile.stepped or group.tile.reduction
        assert tile is not None
        self.axis: Axis = tile.axis
        self.online = self.values.online_softmax() if group.tile.strategy == "looped" else {}
        self.levels = self.values.levels(self.axis, self.online)
        self.store_levels = self._store_levels()

    def print_body(self) -> list[str]:
        """Print pass after pass; what a loop does not change is printed before it."""
        levels = [self.levels[loop.buffer] for loop in self.values.folds(Reduction)]
        count = max([*levels, *self.store_levels.values()], default=-1) + 1
        loads = [{load for root in self._roots(n) for load in self.values.memory_loads(root)} for n in range(count)]
        passes = [line for number in range(count) for line in self._pass(number, self._eviction(loads, number))]
        for loop in self.group.loops:
            if loop.buffer in self.group.stored and loop.buffer not in self.store_levels:
                self.store(loop)
        return passes + self.writer.outer.lines + self.writer.outer.tail

    def _store_levels(self) -> dict[str, int]:
        """The pass of every store along the reduction axis: the first that can make it and may overwrite its memory."""
        first = {
            loop.buffer: self.levels[loop.buffer]
            for loop in self.group.loops
            if loop.buffer in self.group.stored and self._is_full(loop)
        }
        self.store_levels = first
        last_reads: dict[str, int] = {}
        for number in range(1 + max(self.levels.values())):
            for root in self._roots(number):
                for load in self.values.memory_loads(root):
                    last_reads[self._storage(load.buffer)] = number
        levels = {name: max(level, last_reads.get(self._storage(name), 0)) for name, level in first.items()}
        if levels == first:
            return first
        return dict.fromkeys(levels, max(levels.values()))

    def _storage(self, buffer: str) -> str:
        return self.context.storage.get(buffer, buffer)

    def _is_full(self, loop: Loop) -> bool:
        """Whether the loop's result varies along the axis that is walked."""
        return self.axis in self.loop_axes(loop) | self.writer.axes_of(self.values.result(loop))

    def _stores(self, number: int) -> list[Loop]:
        return [loop for loop in self.group.loops if self.store_levels.get(loop.buffer) == number]

    def _reductions(self, number: int) -> list[Loop]:
        return [loop for loop in self.values.folds(Reduction) if self.levels[loop.buffer] == number]

    def _roots(self, number: int) -> list[Expr]:
        """The expressions that a pass computes."""
        roots: list[Expr] = []
        for loop in self._stores(number):
            roots += [self.values.result(loop), *self.values.store_parts(loop)]
        roots += [self.values.values[loop.buffer] for loop in self._reductions(number)]
        return roots + [self.values.values[scan.buffer] for scan in self.values.scans_in(roots)]

    def _eviction(self, loads: list[set[Load]], number: int) -> dict[Load, str]:
        """Keep in the cache what a later pass reads again; let go of it at the last read."""
        everywhere = {tile.axis for tile in self.geometry.plan.axes if tile.axis.size.constant != 1}
        earlier, later = set().union(*loads[:number]), set().union(*loads[number + 1 :])
        policies = dict.fromkeys((loads[number] & earlier) - later, "evict_first")
        policies |= dict.fromkeys(loads[number] & later, "evict_last")
        return {load: policy for load, policy in policies.items() if index_axes(load.index) >= everywhere}

    def _pass(self, number: int, eviction: dict[Load, str]) -> list[str]:
        """One walk over the axis: the lines before the loop, its head, those in it, and those after it."""
        writer = self.writer
        writer.outer.lines, writer.inner, writer.eviction = [], Scope(self.axis), eviction
        writer.masked.discard(self.axis)
        writer.used.discard(self.axis)
        scans = self.values.scans_in(self._roots(number))
        for scan in scans:
            self._scan_step(scan)
        maxima = set(self.online.values())
        finish: list[Callable[[], None]] = []
        for loop in self._reductions(number):
            if self.axis not in loop.reduction_axes:
                self.fold_block(loop)
            elif loop.buffer not in maxima:
                finish.append(self._accumulate(loop))
        for loop in self._stores(number):
            self.store(loop)
        inner, before = writer.inner, writer.outer.lines
        head, *positions = self._header()
        writer.outer.lines, writer.inner = [], writer.outer
        writer.namer.release(inner.names)
        for step in finish:
            step()
        after, writer.outer.lines = writer.outer.lines, []
        for scan in scans:
            del writer.known[self.values.leaf(scan)]
        return [*before, head, *(f"    {line}" for line in positions + inner.lines + inner.tail), *after]

    def _header(self) -> list[str]:
        """The `for` line, and the positions and mask of a step if they are used."""
        axis, block, size = self.axis, block_name(self.axis), host(self.axis.size)
        stages = self.geometry.plan.num_stages
        walk, ahead = ("tl.range", f", num_stages={stages}") if stages > 1 else ("range", "")
        if axis not in self.geometry.live:
            return [f"for {position_name(axis)} in {walk}(0, {size}{ahead}):"]
        start = start_name(axis)
        lines = [f"for {start} in {walk}(0, {size}, {block}{ahead}):"]
        if axis in self.writer.used | self.writer.masked:
            lines.append(f"{position_name(axis)} = {start} + {self.geometry.block_range(axis)}")
        if axis in self.writer.masked:
            lines.append(self.geometry.mask_line(axis))
        return lines

    def _scan_step(self, loop: Loop) -> None:
        """One step of a scan that carries its last value to the next step."""
        folds, writer, fold = self.folds, self.writer, fold_of(loop)
        lanes = writer.bind("lanes", folds.lanes(fold, self.values.values[loop.buffer]))
        axes = writer.known_axes[self.values.leaf(loop)] - {self.axis}
        carry = writer.namer.fresh(f"{self.context.names[loop.buffer]}_before")
        writer.outer.lines.append(f"{carry} = {folds.start(fold, axes)}")
        self.know(loop, folds.combined(fold, Text(carry), folds.scanned(fold, lanes.text)))
        total = folds.combined(fold, Text(carry), folds.whole(fold, lanes.text))
        writer.inner.tail.append(f"{carry} = {total}")

    def _accumulate(self, loop: Loop) -> Callable[[], None]:
        """One step of a reduction; returns what prints the result after the loop."""
        if loop.buffer in self.online:
            return self._online_step(self.values.loops[self.online[loop.buffer]], loop)
        folds, writer, fold = self.folds, self.writer, fold_of(loop)
        lanes = writer.shortened("candidates", folds.lanes(fold, self.values.values[loop.buffer]))
        name = writer.namer.fresh(f"{self.context.names[loop.buffer]}_lanes")
        writer.outer.lines.append(f"{name} = {folds.start(fold, lanes.axes)}")
        if fold.finds_place:
            return self._place_step(loop, name, lanes)
        step = folds.combined(fold, Text(name), lanes.text)
        writer.inner.lines.append(f"{name} += {lanes.text}" if fold.kind == "sum" else f"{name} = {step}")
        return lambda: self.know(loop, folds.whole(fold, Text(name)))

    def _place_step(self, loop: Loop, name: str, lanes: Value) -> Callable[[], None]:
        """One step of an argmax or argmin."""
        folds, writer, fold = self.folds, self.writer, fold_of(loop)
        places = writer.namer.fresh(f"{self.context.names[loop.buffer]}_places")
        integer = torch.int64 if self.geometry.wide else torch.int32
        none_yet = str(torch.iinfo(integer).max)
        start = call("tl.full", self.geometry.shape(lanes.axes), none_yet, triton_dtype(integer))
        writer.outer.lines.append(f"{places} = {start}")
        here = writer.shortened("here", folds.places(fold, lanes.axes), 30).text
        step = call(writer.call_function(fold.function), name, places, lanes.text, here)
        writer.inner.lines.append(f"{name}, {places} = {step}")
        return lambda: self.know_place(loop, folds.whole(fold, Text(name), Text(places)))

    def _online_step(self, highest: Loop, total: Loop) -> Callable[[], None]:
        """A maximum and the sum of exponentials below it in one walk: the sum shrinks when the maximum grows.

        `tl.exp` is off by `|x| 2**-24` of e**x, most where the sum has least of it, and takes half of the time of an exact one.
        """
        folds, writer, fold, sum_fold = self.folds, self.writer, fold_of(highest), fold_of(total)
        lanes = writer.bind("score", folds.lanes(fold, self.values.values[highest.buffer]))
        maxima = writer.namer.fresh(f"{self.context.names[highest.buffer]}_lanes")
        sums = writer.namer.fresh(f"{self.context.names[total.buffer]}_lanes")
        writer.outer.lines.append(f"{maxima} = {folds.start(fold, lanes.axes)}")
        writer.outer.lines.append(f"{sums} = {folds.start(sum_fold, lanes.axes)}")
        rise, shrink = writer.namer.fresh("rise"), writer.namer.fresh("shrink")
        writer.inner.lines += [
            f"{rise} = {lanes.text} - tl.maximum({maxima}, {torch.finfo(torch.float32).min!r})",
            f"{shrink} = tl.exp(-tl.abs({rise}))",
            f"{sums} = tl.where({rise} > 0, {sums} * {shrink} + 1.0, {sums} + {shrink})",
            f"{maxima} = {folds.combined(fold, Text(maxima), lanes.text)}",
        ]

        def finish() -> None:
            self.know(highest, folds.whole(fold, Text(maxima)))
            maximum = writer.known[self.values.leaf(highest)].text
            self.know(total, folds.whole(sum_fold, Text(f"{sums} * tl.exp({maxima} - {maximum})")))

        return finish
