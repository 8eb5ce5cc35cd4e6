"""The host function: allocation, reuse, frees, extern calls, symbolic sizes, outputs."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import minicompile
from minicompile.codegen.generate import generate_program
from minicompile.config import Config
from minicompile.ir.expr import Constant, Load, apply
from minicompile.ir.index import ZERO, Axis, Symbol, as_index
from minicompile.ir.loops import Buffer, BufferView, ExternKernel, Loop, Reduction
from minicompile.ir.schedule import Allocation, KernelGroup, MemoryPlan, Schedule
from tests.codegen.build import (
    INTERPRETER,
    buffer,
    group,
    load,
    pointwise_plan,
    programs,
    reduction_plan,
    schedule,
    whole,
)

F32 = torch.float32


def scaled(source: str, target: str, size: int, factor: float, dtype: torch.dtype = F32, **options: object) -> KernelGroup:
    """`target = source * factor`."""
    x = Axis("x", size)
    at = as_index(x)
    value = apply("mul", Load(source, at, dtype), Constant(factor, dtype), dtype=dtype)
    return group(f"scale_{target}", [Loop(target, (x,), value, at, **options)], pointwise_plan((x, 64)), [target])  # type: ignore[arg-type]


def text_of(of: Schedule) -> str:
    return generate_program(of, Config(), INTERPRETER).text


def call_body(of: Schedule) -> list[str]:
    lines = text_of(of).split("def call(inputs):")[1].split("\n\n\n")[0].splitlines()
    return [line.strip() for line in lines[2:]]


def test_equal_kernels_are_one_definition() -> None:
    steps = [scaled("a", "b", 100, 2.0), scaled("b", "c", 100, 2.0), scaled("c", "d", 100, 3.0)]
    built = schedule(steps, [buffer("a", (100,), role="input"), *(buffer(n, (100,)) for n in "bcd")], ["d"])
    program, _ = programs(built)
    assert [kernel.name for kernel in program.kernels] == ["scale_b_kernel", "scale_d_kernel"]
    assert program.launches == ("scale_b_kernel", "scale_b_kernel", "scale_d_kernel")
    a = torch.randn(100)
    torch.testing.assert_close(load(program).call([a])[0], a * 12)


def test_memory_is_freed_and_taken_over_as_planned() -> None:
    steps = [scaled("a", "b", 100, 2.0), scaled("b", "c", 100, 2.0), scaled("c", "d", 100, 2.0), scaled("d", "e", 50, 2.0)]
    sizes = dict.fromkeys("bcd", 100) | {"e": 50}
    buffers = [buffer("a", (100,), role="input"), *(buffer(n, (s,)) for n, s in sizes.items())]
    allocations = {"b": Allocation("b", None, 0, 1), "c": Allocation("c", None, 1, 2), "d": Allocation("d", "b", 2, 3),
                   "e": Allocation("e", "c", 3, 4)}  # fmt: skip
    memory = MemoryPlan(allocations, {0: ("a",), 1: ("b",), 2: ("c",), 3: ("d",)})
    built = schedule(steps, buffers, ["e"], memory)
    body = call_body(built)
    assert sum("empty_strided" in line for line in body) == 2
    assert "del a" in body and any(line.startswith("d = b") for line in body)
    for program in programs(built):
        a = torch.randn(100)
        torch.testing.assert_close(load(program).call([a])[0], a[:50] * 16)


def test_memory_written_in_place_can_be_handed_on_later() -> None:
    steps = [scaled("a", "b", 100, 2.0), scaled("b", "c", 100, 2.0, overwrites="b"), scaled("c", "d", 100, 2.0),
             scaled("d", "e", 100, 2.0)]  # fmt: skip
    buffers = [buffer("a", (100,), role="input"), *(buffer(n, (100,)) for n in "bcde")]
    allocations = {"b": Allocation("b", None, 0, 0), "c": Allocation("c", "b", 1, 2), "d": Allocation("d", None, 2, 3),
                   "e": Allocation("e", "b", 3, 4)}  # fmt: skip
    built = schedule(steps, buffers, ["e"], MemoryPlan(allocations, {0: ("a", "b"), 2: ("c",), 3: ("d",)}))
    a = torch.randn(100)
    torch.testing.assert_close(load(programs(built)[0]).call([a])[0], a * 16)


def test_inputs_are_let_go_of() -> None:
    built = schedule([scaled("a", "b", 100, 2.0)], [buffer("a", (100,), role="input"), buffer("b", (100,))], ["b"])
    inputs = [torch.randn(100)]
    load(programs(built)[0]).call(inputs)
    assert inputs == []


def test_an_overwritten_input_is_the_same_memory() -> None:
    steps = [scaled("a", "b", 100, 2.0, overwrites="a")]
    built = schedule(steps, [buffer("a", (100,), role="input"), buffer("b", (100,))], ["b"])
    a = torch.ones(100)
    (found,) = load(programs(built)[0]).call([a])
    assert found.data_ptr() == a.data_ptr() and (a == 2).all()


def matmul_schedule(target: str, out_argument: bool, *added: Buffer) -> Schedule:
    out = buffer("product", (8, 6))
    weight = buffer("weight", (6, 5), role="input")
    transposed = BufferView("weight", weight.sizes[::-1], weight.strides[::-1], ZERO, F32)
    a = buffer("a", (9, 5), role="input")
    rows = BufferView("a", (as_index(8), as_index(5)), a.strides, as_index(5), F32)
    step = ExternKernel(target, (*map(whole, added), rows, transposed), (), (out,), out_argument=out_argument)
    steps = [step, scaled("product", "b", 48, 2.0)]
    return schedule(steps, [*added, a, weight, out, buffer("b", (8, 6))], ["b"])


@pytest.mark.parametrize(("target", "out", "text"), [("torch.ops.aten.mm.out", True, "weight, out=product)"),
                                                     ("torch.ops.aten.mm.default", False, "weight.t())")])  # fmt: skip
def test_extern_calls_on_views(target: str, out: bool, text: str) -> None:
    built = matmul_schedule(target, out)
    a, weight = torch.randn(9, 5), torch.randn(6, 5)
    (found,) = load(programs(built)[0]).call([a, weight])
    torch.testing.assert_close(found, a[1:] @ weight.t() * 2)
    assert text in text_of(built)


def test_a_product_with_an_added_vector_takes_the_matrix_as_it_lies() -> None:
    built = matmul_schedule("torch.ops.aten.addmm.out", True, buffer("bias", (6,), role="input"))
    bias, a, weight = torch.randn(6), torch.randn(9, 5), torch.randn(6, 5)
    (found,) = load(programs(built)[0]).call([bias, a, weight])
    assert torch.equal(found, torch.addmm(bias, a[1:], weight.t()) * 2)
    assert "weight, bias, out=product)" in text_of(built)


def test_what_a_call_reads_in_another_shape_is_held_in_that_shape() -> None:
    held = buffer("held", (2, 3, 4))
    rows = BufferView("held", (as_index(6), as_index(4)), (as_index(4), as_index(1)), ZERO, F32)
    middle, out = buffer("middle", (6, 6)), buffer("out", (2, 12))
    right = whole(buffer("right", (4, 6), role="input"))
    steps = [
        scaled("a", "held", 24, 2.0),
        ExternKernel("torch.ops.aten.mm.out", (rows, right), (), (middle,), out_argument=True),
        scaled("held", "out", 24, 3.0),
    ]
    buffers = [buffer("a", (2, 3, 4), role="input"), buffer("right", (4, 6), role="input"), held, middle, out]
    built = schedule(steps, buffers, ["middle", "out"], MemoryPlan({"out": Allocation("out", "held", 2, 3)}, {}))
    a, right_value = torch.randn(2, 3, 4), torch.randn(4, 6)
    found, tripled = load(programs(built)[0]).call([a, right_value])
    assert torch.equal(found, (a * 2).view(6, 4) @ right_value) and torch.equal(tripled, (a * 6).view(2, 12))
    assert "held = empty_strided((6, 4), (4, 1)" in text_of(built)


def test_calls_of_hand_written_kernels_have_a_name_for_each_layout_and_option() -> None:
    def bounds(mask: str, by_keys: bool) -> ExternKernel:
        made = Buffer(f"{mask}_{by_keys}_bounds", torch.int32, torch.device("cpu"), (as_index(1),), (as_index(1),))
        return ExternKernel("kernels.mask_bounds", (whole(masks[mask]), 8, 8, by_keys), (), (made,), unpack=True)

    masks = {name: buffer(name, sizes, torch.bool, role="input") for name, sizes in (("m", (8, 8)), ("n", (8, 8)), ("o", (1, 8, 8)))}
    calls = [bounds("m", True), bounds("n", True), bounds("m", False), bounds("o", True)]
    made = [output for call in calls for output in call.outputs if output is not None]
    program = generate_program(schedule(calls, [*masks.values(), *made], [b.name for b in made]), Config(), INTERPRETER)
    assert [name for name, _ in program.steps] == ["mask_bounds", "mask_bounds", "mask_bounds_1", "mask_bounds_2"]
    assert program.fixed_calls == ("mask_bounds", "mask_bounds_1", "mask_bounds_2")
    assert "mask_bounds_1 = mask_bounds  # for other sizes or options\n" in program.text


def test_views_are_relative_to_an_inputs_own_offset() -> None:
    base = torch.randn(100)
    a, weight = base[7:52].view(9, 5), torch.randn(6, 5)
    (found,) = load(programs(matmul_schedule("torch.ops.aten.mm.default", False))[0]).call([a, weight])
    torch.testing.assert_close(found, a[1:] @ weight.t() * 2)


def test_an_operator_with_another_layout_than_promised_is_copied() -> None:
    out = buffer("product", (5, 6))
    a = buffer("a", (6, 5), role="input")
    step = ExternKernel("torch.ops.aten.t.default", (whole(a),), (), (out,))
    built = schedule([step, scaled("product", "b", 30, 1.0)], [a, out, buffer("b", (5, 6))], ["b"])
    source = torch.randn(6, 5)
    assert torch.equal(load(programs(built)[0]).call([source])[0], source.t())


def test_several_results_and_keyword_arguments() -> None:
    a = buffer("a", (6, 5), role="input")
    values, places = buffer("values", (6, 2)), buffer("places", (6, 2), torch.int64)
    kept = ExternKernel("torch.ops.aten.topk.default", (whole(a), 2), (("largest", False),), (values, None), unpack=True)
    both = ExternKernel("torch.ops.aten.topk.default", (whole(a), 2), (), (values, places), unpack=True)
    full = ExternKernel("torch.ops.aten.full.default", ([as_index(6), 2], float("-inf")),
                        (("dtype", F32), ("device", torch.device("cpu"))), (values,))  # fmt: skip
    source = torch.randn(6, 5)
    (found,) = load(programs(schedule([kept], [a, values], ["values"]))[0]).call([source])
    assert torch.equal(found, source.topk(2, largest=False).values)
    found, where = load(programs(schedule([both], [a, values, places], ["values", "places"]))[0]).call([source])
    assert torch.equal(where, source.topk(2).indices) and torch.equal(found, source.topk(2).values)
    (found,) = load(programs(schedule([full], [a, values], ["values"]))[0]).call([source])
    assert (found == -torch.inf).all()


def test_an_in_place_operator_changes_its_argument() -> None:
    a, new = buffer("a", (6,), role="input"), buffer("new", (6,))
    step = ExternKernel("torch.ops.aten.add_.Scalar", (whole(a), 1), (), (new,), overwrites=("a",))
    built = schedule([step, scaled("new", "b", 6, 2.0)], [a, new, buffer("b", (6,))], ["b", "new"])
    source = torch.zeros(6)
    doubled, same = load(programs(built)[0]).call([source])
    assert (source == 1).all() and (doubled == 2).all() and same is source


def dynamic(size_input: bool) -> Schedule:
    rows = as_index(Symbol("s0", 5, 0))
    x, r = Axis("x", rows), Axis("r", 7)
    value = Load("a", as_index(x) * 7 + as_index(r), F32)
    loops = [Loop("sums", (x,), value, as_index(x), Reduction("sum", (r,)))]
    buffers = [buffer("a", (rows, 7), role="input"), buffer("sums", (rows,))]
    sizes = {"size": rows} if size_input else None
    return schedule([group("sums", loops, reduction_plan("persistent", (x, 4), (r, 8)), ["sums"])], buffers, ["sums"],
                    size_inputs=sizes)  # fmt: skip


@pytest.mark.parametrize("size_input", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 5, 64])
def test_symbolic_sizes(rows: int, size_input: bool) -> None:
    a = torch.randn(rows, 7)
    for program in programs(dynamic(size_input)):
        (found,) = load(program).call([rows, a] if size_input else [a])
        torch.testing.assert_close(found, a.sum(-1))


def test_sizes_numbers_and_views_are_returned() -> None:
    rows = as_index(Symbol("s0", 5, 0))
    built = dynamic(True)
    turned = BufferView("a", (as_index(7), rows), (as_index(1), as_index(7)), ZERO, F32)
    bits = BufferView("a", (rows, as_index(7)), (as_index(7), as_index(1)), ZERO, torch.int32)
    outputs = (rows * 2, 3, None, 2.5, True, turned, bits, whole(built.graph.buffers["sums"]))
    built = dataclasses.replace(built, graph=dataclasses.replace(built.graph, outputs=outputs))
    a = torch.randn(4, 7)
    double, three, nothing, number, yes, transposed, as_bits, _ = load(programs(built)[0]).call([4, a])
    assert (double, three, nothing, number, yes) == (8, 3, None, 2.5, True)
    assert torch.equal(transposed, a.t()) and torch.equal(as_bits, a.view(torch.int32))


def test_constants_and_empty_launches() -> None:
    table = torch.arange(4.0)
    built = schedule([scaled("table", "b", 4, 2.0)], [Buffer("table", F32, torch.device("cpu"), (as_index(4),),
                     (as_index(1),), "constant"), buffer("b", (4,))], ["b"], constants={"table": table})  # fmt: skip
    program, _ = programs(built)
    assert torch.equal(load(program).call([])[0], table * 2)
    other = dataclasses.replace(built, graph=dataclasses.replace(built.graph, constants={"table": table + 1}))
    assert programs(other)[0].key != program.key
    empty = schedule([scaled("a", "b", 0, 2.0)], [buffer("a", (0,), role="input"), buffer("b", (0,))], ["b"])
    assert load(programs(empty)[0]).call([torch.empty(0)])[0].shape == (0,)


def test_names_that_python_or_the_file_uses_are_avoided() -> None:
    names = ["inputs", "torch", "lambda", "call"]
    steps = [scaled(one, other, 10, 2.0) for one, other in zip(names, [*names[1:], "tl"], strict=True)]
    buffers = [buffer("inputs", (10,), role="input"), *(buffer(name, (10,)) for name in (*names[1:], "tl"))]
    a = torch.randn(10)
    torch.testing.assert_close(load(programs(schedule(steps, buffers, ["tl"]))[0]).call([a])[0], a * 16)


def test_variables_called_like_our_functions_are_renamed() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        larger = x * 2
        larger_number = larger.amax(-1, keepdim=True)
        first_largest = (larger - larger_number).argmax(-1)
        float_remainder = x.floor_divide(0.3).remainder(0.7)
        return larger, larger_number, first_largest, float_remainder

    x = torch.randn(5, 70)
    compiled = minicompile.compile(program, options={"suppress_errors": False, "cache": False})
    torch.testing.assert_close(compiled(x), program(x))


def test_a_variable_called_like_the_hand_written_kernel_that_computes_it_is_renamed() -> None:
    x, out = buffer("x", (4, 4), role="input"), buffer("fused_matmul", (4, 4))
    step = ExternKernel("kernels.fused_matmul", (None, whole(x), whole(x)), (("tile", "16x16x16 w4 s1"),), (out,))
    program = programs(schedule([step], [x, out], ["fused_matmul"]))[0]
    a = torch.randn(4, 4)
    torch.testing.assert_close(load(program).call([a])[0], a @ a)


def test_the_file_runs_by_itself(tmp_path: pathlib.Path) -> None:
    built = schedule([scaled("a", "b", 100, 2.0)], [buffer("a", (100,), role="input"), buffer("b", (100,))], ["b"])
    reference = "def reference(a):\n    return (a * 2,)\n"
    path = tmp_path / "graph.py"
    path.write_text(generate_program(built, Config(), INTERPRETER, reference).text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(path), "2"], capture_output=True, text=True, check=True, timeout=100, env=environment
    )
    assert "largest difference from eager 0" in done.stdout and "us a call" in done.stdout
