"""One kernel group to the source of one Triton kernel.

Pointwise and persistent kernels are straight lines. A looped kernel walks the reduction axis once per *pass*: the
reductions of a pass depend only on results of earlier ones, and what a later pass needs again it computes again from
its loads. Stores come last in their scope, and a store into memory that the kernel also reads waits for the last pass
that reads it. This module must not choose tiles or order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch

from minicompile.codegen.expression_writer import ExpressionWriter, Scope, Value, index_axes
from minicompile.codegen.folds import Fold, FoldWriter, fold_of
from minicompile.codegen.geometry import Geometry, block_name, mask_name, plan_for_device, position_name
from minicompile.codegen.index_text import extent, host
from minicompile.codegen.naming import Namer
from minicompile.codegen.triton_text import LOW_PRECISION, Text, call, compute_dtype, infix, literal
from minicompile.codegen.unsupported import CannotGenerate
from minicompile.ir.expr import Apply, Expr, IndexValue, Load, Random, cast, indirect_values, rewrite, walk
from minicompile.ir.index import Axis, Index, Symbol, as_index
from minicompile.ir.loops import Buffer, Loop, Reduction, Scan
from minicompile.ir.schedule import DeviceProperties, KernelGroup, OnlineSoftmax


@dataclasses.dataclass(frozen=True)
class Pass:
    """One walk over the reduction axis: the lines before the loop, in it, and after it."""

    before: tuple[str, ...]
    header: tuple[str, ...]
    body: tuple[str, ...]
    after: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class KernelText:
    """What a kernel's template prints.

    Attributes:
        reads, writes: buffers behind the pointer parameters.
        symbols: size parameters.
        functions: device functions called.
    """

    name: str
    strategy: str
    parameters: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]
    setup: tuple[str, ...]
    passes: tuple[Pass, ...]
    body: tuple[str, ...]
    pointers: tuple[str, ...]
    symbols: tuple[str, ...]
    functions: tuple[str, ...]
    grid: tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class KernelContext:
    """What a kernel needs to know of the graph around it.

    Attributes:
        buffers: every buffer.
        names: identifier of every buffer.
        storage: buffers that share memory have the same value here.
        device: the chip, or the interpreter.
        round_each: round 16-bit values after every operation, as eager does.
    """

    buffers: Mapping[str, Buffer]
    names: Mapping[str, str]
    storage: Mapping[str, str]
    device: DeviceProperties
    round_each: bool = False


def write_kernel(group: KernelGroup, name: str, context: KernelContext) -> KernelText:
    """The text of the kernel for `group`."""
    return _KernelWriter(group, name, context).write()


@dataclasses.dataclass(frozen=True)
class _Store:
    """A store to print: the loop it belongs to, the value, and the pass in which it may happen."""

    loop: Loop
    value: Expr
    level: int


class _KernelWriter:
    def __init__(self, group: KernelGroup, name: str, context: KernelContext) -> None:
        self._group, self._name, self._context = group, name, context
        self._loops = {loop.buffer: loop for loop in group.loops}
        self._values = self._inlined_values()
        plan = plan_for_device(group.tile, context.device)
        self._geometry = Geometry(plan, self._needs_wide_indices())
        self._pointers = self._pointer_order()
        namer = Namer(["program", *(t.axis.name for t in plan.axes)])
        self._parameters = {buffer: namer.fresh(f"{context.names[buffer]}_ptr") for buffer in self._pointers}
        self._writer = ExpressionWriter(self._geometry, context.buffers, self._parameters, context.round_each)
        self._folds = FoldWriter(self._writer) if self._geometry.reduction else None
        self._online = {o.total: o for o in group.online if self._geometry.looped and self._is_online(o)}
        self._levels: dict[str, int] = {}
        self._learn()

    def _inlined_values(self) -> dict[str, Expr]:
        """Each loop's value over loads from memory and results of folds only."""
        values: dict[str, Expr] = {}
        for loop in self._group.loops:
            value = rewrite(loop.value, on_load=lambda load: self._resolved(load, values))
            dtype = self._context.buffers[loop.buffer].dtype
            values[loop.buffer] = value if loop.fold else cast(value, dtype)
        return values

    def _resolved(self, load: Load, values: Mapping[str, Expr]) -> Expr:
        if load.buffer not in values:
            return load
        producer = self._loops[load.buffer]
        if producer.store != load.index or producer.accumulate or producer.condition is not None:
            raise CannotGenerate(f"{load} is not what the same kernel computes there ({producer.store})")
        if producer.fold is None:
            return values[load.buffer]
        return Load(self._first_fold(producer, values).buffer, load.index, load.dtype)

    def _first_fold(self, loop: Loop, values: Mapping[str, Expr]) -> Loop:
        """The first loop of the group that computes the same reduction or scan."""
        dtype = self._context.buffers[loop.buffer].dtype
        wanted = (values[loop.buffer], loop.fold, loop.store, dtype)
        for other in self._group.loops:
            if (values.get(other.buffer), other.fold, other.store, self._context.buffers[other.buffer].dtype) == wanted:
                return other
        return loop

    def _resolve(self, expression: Expr) -> Expr:
        return rewrite(expression, on_load=lambda load: self._resolved(load, self._values))

    def _memory_loads(self, expression: Expr) -> list[Load]:
        return [e for e in walk(expression) if isinstance(e, Load) and e.buffer not in self._values]

    def _roots(self) -> list[Expr]:
        """Every expression that will be printed, in order."""
        roots: list[Expr] = []
        for loop in self._group.loops:
            if loop.fold or loop.buffer in self._group.stored:
                roots.append(self._values[loop.buffer])
                roots.extend([self._resolve(loop.condition)] if loop.condition is not None else [])
                roots.extend(self._resolve(value) for value in indirect_values(loop.store))
        return roots

    def _pointer_order(self) -> list[str]:
        order: dict[str, None] = {}
        for root in self._roots():
            order.update(dict.fromkeys(load.buffer for load in self._memory_loads(root)))
        order.update(dict.fromkeys(self._group.writes))
        return list(order)

    def _needs_wide_indices(self) -> bool:
        """Whether some position or offset may not fit 32 bits; symbolic sizes might grow."""
        limit = 2**31 - 1
        for tile in self._group.tile.axes:
            if tile.axis.size.constant is None or int(tile.axis.size) + tile.block > limit:
                return True
        indices = [loop.store for loop in self._group.loops]
        for root in self._roots():
            for expression in walk(root):
                if isinstance(expression, (Load, IndexValue)):
                    indices.append(expression.index)
                elif isinstance(expression, Random):
                    indices.append(expression.counter)
        return any(extent(index) > limit for index in indices)

    def _learn(self) -> None:
        """Levels of all loops, axes of fold results, names and use counts."""
        parallel = frozenset(tile.axis for tile in self._geometry.plan.parallel)
        for loop in self._group.loops:
            value = self._values[loop.buffer]
            leaf = self._leaf(loop)
            if isinstance(loop.fold, Scan):
                assert self._geometry.reduction is not None
                self._writer.known_axes[leaf] = self._writer.axes_of(value) | {self._geometry.reduction}
            elif loop.fold is not None:
                self._writer.known_axes[leaf] = self._writer.axes_of(value) & parallel
            self._levels[loop.buffer] = self._level(value)
            if loop.buffer in self._online:
                self._levels[loop.buffer] = self._levels[self._online[loop.buffer].maximum]
        for loop in self._group.loops:
            if loop.fold is None:
                self._writer.names.setdefault(self._values[loop.buffer], self._context.names[loop.buffer])
        self._writer.count(self._roots(), [loop.store for loop in self._group.loops if loop.buffer in self._group.stored])

    def _leaf(self, loop: Loop) -> Load:
        return Load(loop.buffer, loop.store, self._context.buffers[loop.buffer].dtype)

    def _level(self, value: Expr) -> int:
        """The first pass in which a value can be computed."""
        level = 0
        for expression in walk(value):
            if isinstance(expression, Load) and expression.buffer in self._levels:
                producer = self._loops[expression.buffer]
                after = 1 if isinstance(producer.fold, Reduction) else 0
                level = max(level, self._levels[expression.buffer] + after)
        return level

    def _is_online(self, online: OnlineSoftmax) -> bool:
        """Whether the pair is a maximum and the sum of `exp(value - maximum)` for certain."""
        highest, total = self._loops[online.maximum], self._loops[online.total]
        if self._is_repeated(highest) or self._is_repeated(total):
            return False
        if not (isinstance(highest.fold, Reduction) and highest.fold.kind == "max"):
            return False
        exponential = _without_casts(self._values[online.total])
        if not (isinstance(total.fold, Reduction) and total.fold.kind == "sum" and isinstance(exponential, Apply)):
            return False
        difference = _without_casts(exponential.arguments[0])
        if exponential.operation != "exp" or not (isinstance(difference, Apply) and difference.operation == "sub"):
            return False
        value, subtracted = map(_without_casts, difference.arguments)
        return value is _without_casts(self._values[online.maximum]) and subtracted is self._leaf(highest)

    def write(self) -> KernelText:
        """Print everything, then the lines that define the positions and masks that were used."""
        if self._geometry.looped:
            passes, body = self._looped(), tuple(self._writer.outer.lines + self._writer.outer.tail)
        else:
            passes, body = (), self._straight()
        writer, geometry = self._writer, self._geometry
        reduction = geometry.reduction
        used = (writer.used | writer.masked) - ({reduction} if geometry.looped else set())
        setup = geometry.setup(used, writer.masked)
        if reduction is not None and not geometry.looped:
            setup += [f"{position_name(reduction)} = {geometry.block_range(reduction)}"] if reduction in used else []
            setup += [geometry.mask_line(reduction)] if reduction in writer.masked else []
        symbols = sorted({s.name for s in writer.symbols | geometry.symbols()})
        return KernelText(
            name=self._name,
            strategy=geometry.plan.strategy,
            parameters=(*(self._parameters[p] for p in self._pointers), *symbols),
            constants=geometry.constants(),
            setup=tuple(setup),
            passes=passes,
            body=body,
            pointers=tuple(self._pointers),
            symbols=tuple(symbols),
            functions=tuple(sorted(writer.functions)),
            grid=geometry.grid(),
        )

    def _straight(self) -> tuple[str, ...]:
        for loop in self._group.loops:
            if loop.fold is not None and not self._is_repeated(loop):
                self._fold_block(loop)
            if loop.buffer in self._group.stored:
                self._store(_Store(loop, self._stored_value(loop), 0))
        return tuple(self._writer.outer.lines + self._writer.outer.tail)

    def _stored_value(self, loop: Loop) -> Expr:
        return self._leaf(self._first_fold(loop, self._values)) if loop.fold else self._values[loop.buffer]

    def _is_repeated(self, loop: Loop) -> bool:
        """Whether an earlier loop already computes the same fold."""
        return loop.fold is not None and self._first_fold(loop, self._values) is not loop

    def _fold_block(self, loop: Loop) -> None:
        """A reduction or scan over an axis that lies in one block."""
        assert self._folds is not None
        fold, leaf = fold_of(loop), self._leaf(loop)
        lanes = self._writer.shortened("lanes", self._folds.lanes(fold, self._values[loop.buffer]))
        if isinstance(loop.fold, Scan):
            self._know(loop, fold, self._folds.scanned(fold, lanes.text))
            return
        if fold.finds_place:
            here = self._writer.shortened("here", self._folds.places(lanes.axes), 30)
            whole = self._folds.whole(fold, lanes.text, here.text)
            self._know_place(loop, fold, whole)
            return
        self._know(loop, fold, self._folds.whole(fold, lanes.text))
        assert leaf in self._writer.known

    def _know(self, loop: Loop, fold: Fold, text: Text) -> None:
        """Make the result of a fold available to what reads its buffer."""
        assert self._folds is not None
        leaf = self._leaf(loop)
        result = self._folds.result(fold, text, leaf.dtype, self._context.round_each)
        axes = self._writer.known_axes[leaf]
        block = len(self._geometry.live) > 1 or isinstance(loop.fold, Scan)
        value = Value(result, axes, block, exact=False)
        self._writer.known[leaf] = self._writer.bind(self._context.names[loop.buffer], value)

    def _know_place(self, loop: Loop, fold: Fold, whole: Text) -> None:
        place = self._writer.namer.fresh("place")
        self._writer.scope_for(self._writer.known_axes[self._leaf(loop)]).lines.append(f"_, {place} = {whole}")
        self._know(loop, fold, Text(place))

    def _store(self, store: _Store) -> None:
        """Queue a store at the end of its scope."""
        loop, buffer = store.loop, self._context.buffers[store.loop.buffer]
        value = self._writer.value(_without_final_rounding(store.value, buffer.dtype))
        offset = self._writer.offset(self._resolved_index(loop.store))
        axes = frozenset(self._loop_axes(loop))
        mask = self._writer.mask(axes)
        if loop.condition is not None:
            condition = self._writer.value(self._resolve(loop.condition))
            text = infix(mask.text, "&", condition.text, 20) if mask else condition.text
            mask = Value(text, condition.axes | (mask.axes if mask else frozenset()), condition.block or mask is not None)
        wanted = value.axes | (mask.axes if mask else frozenset()) | (axes if loop.accumulate else frozenset())
        block = value.block or (mask is not None and mask.block) or bool(wanted & set(self._geometry.live))
        pointer = Text(self._parameters[loop.buffer])
        address = pointer.text if offset.text.text == "0" else infix(pointer, "+", offset.text, 30).text
        live = set(self._geometry.live)
        if block and not (offset.block and wanted & live <= offset.axes):
            address = f"tl.broadcast_to({address}, {self._geometry.shape(wanted | offset.axes)})"
        options = [f"mask={mask.text}"] if mask else []
        text = literal(store.value.value, compute_dtype(buffer.dtype)) if value.is_literal else value.text  # type: ignore[union-attr]
        scope = self._writer.scope_for(wanted | offset.axes)
        if loop.accumulate:
            line = call("tl.atomic_add", address, text, *options, 'sem="relaxed"')
        else:
            line = call("tl.store", address, text, *options)
        scope.tail.append(line.text)

    def _loop_axes(self, loop: Loop) -> set[Axis]:
        axes = set(loop.axes) | index_axes(loop.store)
        if isinstance(loop.fold, Scan):
            axes.add(loop.fold.axis)
        return axes & {tile.axis for tile in self._geometry.plan.axes}

    def _resolved_index(self, index: Index) -> Index:
        probe = rewrite(IndexValue(index, torch.int64), on_load=lambda load: self._resolved(load, self._values))
        assert isinstance(probe, IndexValue)
        return probe.index

    def _looped(self) -> tuple[Pass, ...]:
        """Print pass after pass; what a loop does not change is printed before it."""
        stores = self._full_stores()
        levels = [self._levels[loop.buffer] + 1 for loop in self._group.loops if isinstance(loop.fold, Reduction)]
        count = max([*levels, *(store.level + 1 for store in stores)], default=0)
        self._set_eviction(stores, count)
        passes = [self._pass(number, [s for s in stores if s.level == number]) for number in range(count)]
        for loop in self._group.loops:
            if loop.buffer in self._group.stored and not self._is_full(loop):
                self._store(_Store(loop, self._stored_value(loop), count))
        return tuple(passes)

    def _is_full(self, loop: Loop) -> bool:
        """Whether the loop's result varies along the reduction axis."""
        if isinstance(loop.fold, Reduction):
            return False
        return self._geometry.reduction in self._loop_axes(loop) | self._writer.axes_of(self._stored_value(loop))

    def _pass_roots(self, number: int, stores: list[_Store]) -> list[Expr]:
        roots = [store.value for store in stores if store.level == number]
        roots += [v for s in stores if s.level == number for v in indirect_values(self._resolved_index(s.loop.store))]
        for loop in self._group.loops:
            if isinstance(loop.fold, Reduction) and self._levels[loop.buffer] == number:
                roots.append(self._values[loop.buffer])
        for expression in [e for root in roots for e in walk(root)]:
            if isinstance(expression, Load) and isinstance(getattr(self._loops.get(expression.buffer), "fold", None), Scan):
                roots.append(self._values[expression.buffer])
        return roots

    def _full_stores(self) -> list[_Store]:
        """Stores along the reduction axis, each in the first pass that can make it and may overwrite its memory."""
        stores = [
            _Store(loop, self._stored_value(loop), self._levels[loop.buffer])
            for loop in self._group.loops
            if loop.buffer in self._group.stored and self._is_full(loop)
        ]
        last_reads: dict[str, int] = {}
        for number in range(1 + max([0, *self._levels.values()])):
            for root in self._pass_roots(number, stores):
                for load in self._memory_loads(root):
                    last_reads[self._context.storage.get(load.buffer, load.buffer)] = number
        delayed = []
        for store in stores:
            written = self._context.storage.get(store.loop.buffer, store.loop.buffer)
            delayed.append(dataclasses.replace(store, level=max(store.level, last_reads.get(written, 0))))
        latest = max((store.level for store in delayed), default=0)
        moved = any(new.level != old.level for new, old in zip(delayed, stores, strict=True))
        return [dataclasses.replace(store, level=latest) for store in delayed] if moved else stores

    def _set_eviction(self, stores: list[_Store], count: int) -> None:
        """Keep in the cache what a later pass reads again; let go of it at the last read."""
        if count < 2:
            return
        by_pass = [
            {load for root in self._pass_roots(number, stores) for load in self._memory_loads(root)}
            for number in range(count)
        ]
        self._eviction_by_pass: list[dict[Load, str]] = []
        for number, loads in enumerate(by_pass):
            later, earlier = set().union(*by_pass[number + 1 :]), set().union(*by_pass[:number])
            policies = {load: "evict_last" for load in loads & later}
            policies |= {load: "evict_first" for load in (loads & earlier) - later}
            axis = self._geometry.reduction
            self._eviction_by_pass.append(
                {load: policy for load, policy in policies.items() if _is_private(load, axis, self._geometry)}
            )

    def _pass(self, number: int, stores: list[_Store]) -> Pass:
        writer, axis = self._writer, self._geometry.reduction
        assert axis is not None
        writer.outer.lines = []
        writer.inner = Scope(axis)
        writer.eviction = getattr(self, "_eviction_by_pass", {number: {}})[number]
        self._scans: list[Loop] = []
        writer.masked.discard(axis)
        writer.used.discard(axis)
        finish = [
            self._accumulate(loop)
            for loop in self._group.loops
            if isinstance(loop.fold, Reduction)
            and self._levels[loop.buffer] == number
            and not self._is_repeated(loop)
            and loop.buffer not in {o.maximum for o in self._online.values()}
        ]
        for loop in self._group.loops:
            if isinstance(loop.fold, Scan) and not self._is_repeated(loop) and self._scan_needed(loop, number, stores):
                self._scan_step(loop)
        for store in stores:
            self._store(store)
        inner = writer.inner
        header = self._loop_header(axis)
        before = tuple(writer.outer.lines)
        writer.outer.lines = []
        writer.inner = writer.outer
        writer.namer.release(inner.names)
        for step in finish:
            step()
        after = tuple(writer.outer.lines)
        writer.outer.lines = []
        for leaf in [leaf for leaf in writer.known if isinstance(self._loops[leaf.buffer].fold, Scan)]:
            del writer.known[leaf]
        return Pass(before, header, tuple(inner.lines + inner.tail), after)

    def _scan_needed(self, scan: Loop, number: int, stores: list[_Store]) -> bool:
        leaf = self._leaf(scan)
        return any(leaf in walk(root) for root in self._pass_roots(number, stores))

    def _loop_header(self, axis: Axis) -> tuple[str, ...]:
        """The `for` line, and the positions and mask of a step if they are used."""
        block, size = block_name(axis), host(axis.size)
        lines = [f"for {axis.name}_start in range(0, {size.text}, {block}):"]
        reverse = {loop.fold.reverse for loop in self._scans if isinstance(loop.fold, Scan)}
        if len(reverse) > 1:
            raise CannotGenerate("scans in both directions in one loop")
        start = f"{axis.name}_start"
        if True in reverse:
            last_step = (axis.size - 1) // as_index(self._geometry.tiles[axis].block)
            start = f"{host(last_step).at(40)} * {block} - {axis.name}_start"
        if axis in self._writer.used | self._writer.masked:
            lines.append(f"{position_name(axis)} = {start} + {self._geometry.block_range(axis)}")
        if axis in self._writer.masked:
            lines.append(f"{mask_name(axis)} = {position_name(axis)} < {size.text}")
        return tuple(lines)

    def _scan_step(self, loop: Loop) -> None:
        """One step of a scan that carries its last value to the next step."""
        assert self._folds is not None
        folds, writer, fold, leaf = self._folds, self._writer, fold_of(loop), self._leaf(loop)
        self._scans.append(loop)
        lanes = writer.bind("lanes", folds.lanes(fold, self._values[loop.buffer]))
        axes = writer.known_axes[leaf] - {self._geometry.reduction}
        name = self._context.names[loop.buffer]
        carry = writer.namer.fresh(f"{name}_before")
        writer.outer.lines.append(f"{carry} = {folds.start(fold, axes)}")
        self._know(loop, fold, folds.combined(fold, Text(carry), folds.scanned(fold, lanes.text)))
        total = folds.combined(fold, Text(carry), folds.whole(fold, lanes.text))
        writer.inner.tail.append(f"{carry} = {total}")

    def _accumulate(self, loop: Loop) -> Callable[[], None]:
        """One step of a reduction; returns what prints the result after the loop."""
        assert self._folds is not None
        if loop.buffer in self._online:
            return self._online_step(self._loops[self._online[loop.buffer].maximum], loop)
        folds, writer, fold = self._folds, self._writer, fold_of(loop)
        lanes = writer.shortened("candidates", folds.lanes(fold, self._values[loop.buffer]))
        name = writer.namer.fresh(f"{self._context.names[loop.buffer]}_lanes")
        writer.outer.lines.append(f"{name} = {folds.start(fold, lanes.axes)}")
        if not fold.finds_place:
            step = folds.combined(fold, Text(name), lanes.text)
            writer.inner.lines.append(f"{name} += {lanes.text}" if fold.kind == "sum" else f"{name} = {step}")
            return lambda: self._know(loop, fold, folds.whole(fold, Text(name)))
        place = writer.namer.fresh(f"{self._context.names[loop.buffer]}_places")
        integer = torch.int64 if self._geometry.wide else torch.int32
        shape = self._geometry.shape(lanes.axes)
        last = literal(torch.iinfo(torch.int32).max, integer)
        writer.outer.lines.append(f"{place} = {call('tl.full', shape, last, 'tl.int64' if self._geometry.wide else 'tl.int32')}")
        function = writer.call_function(fold.function)
        here = writer.shortened("here", folds.places(lanes.axes), 30).text
        writer.inner.lines.append(f"{name}, {place} = {function}({name}, {place}, {lanes.text}, {here})")
        return lambda: self._know_place(loop, fold, folds.whole(fold, Text(name), Text(place)))

    def _online_step(self, highest: Loop, total: Loop) -> Callable[[], None]:
        """A maximum and the sum of exponentials below it in one walk: the sum shrinks when the maximum grows."""
        assert self._folds is not None
        folds, writer, fold = self._folds, self._writer, fold_of(highest)
        lanes = writer.bind("score", folds.lanes(fold, self._values[highest.buffer]))
        maxima = writer.namer.fresh(f"{self._context.names[highest.buffer]}_lanes")
        sums = writer.namer.fresh(f"{self._context.names[total.buffer]}_lanes")
        sum_fold = fold_of(total)
        writer.outer.lines.append(f"{maxima} = {folds.start(fold, lanes.axes)}")
        writer.outer.lines.append(f"{sums} = {folds.start(sum_fold, lanes.axes)}")
        exponential = "tl.exp" if total.value.dtype in LOW_PRECISION else "libdevice.exp"
        finite = repr(torch.finfo(torch.float32).min)
        rise, shrink = writer.namer.fresh("rise"), writer.namer.fresh("shrink")
        writer.inner.lines += [
            f"{rise} = {lanes.text} - tl.maximum({maxima}, {finite})",
            f"{shrink} = {exponential}(-tl.abs({rise}))",
            f"{sums} = tl.where({rise} > 0, {sums} * {shrink} + 1.0, {sums} + {shrink})",
            f"{maxima} = {folds.combined(fold, Text(maxima), lanes.text)}",
        ]

        def finish() -> None:
            self._know(highest, fold, folds.whole(fold, Text(maxima)))
            maximum = writer.known[self._leaf(highest)].text
            self._know(total, sum_fold, folds.whole(sum_fold, Text(f"{sums} * {exponential}({maxima} - {maximum})")))

        return finish


def _is_private(load: Load, axis: Axis | None, geometry: Geometry) -> bool:
    """Whether no other program reads what this load reads (it varies along every axis)."""
    return index_axes(load.index) >= {tile.axis for tile in geometry.plan.axes if tile.axis.size.constant != 1}


def _without_casts(expression: Expr) -> Expr:
    """The value below widening casts between floating-point dtypes."""
    while isinstance(expression, Apply) and expression.operation == "cast":
        inner = expression.arguments[0]
        if not (expression.dtype.is_floating_point and inner.dtype.is_floating_point):
            break
        if inner.dtype.itemsize > expression.dtype.itemsize:
            break
        expression = inner
    return expression


def _without_final_rounding(value: Expr, dtype: torch.dtype) -> Expr:
    """A store into 16 bits rounds by itself; a cast just before it need not be printed."""
    if dtype in LOW_PRECISION and isinstance(value, Apply) and value.operation == "cast" and value.dtype == dtype:
        inner = value.arguments[0]
        if compute_dtype(inner.dtype) == torch.float32:
            return inner
    return value

