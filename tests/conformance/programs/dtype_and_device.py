"""Programs about dtypes, type promotion, precision, devices and the objects that name them."""

from __future__ import annotations

import torch

from tests.conformance.catalogue import call, count, integers, leaf, normal, positive, program

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@program(core=True)
def conversions():
    def outer(x):
        return x.to(torch.float64), x.half(), x.bfloat16(), x.int(), x.bool(), x.to("cpu"), x.type(torch.int16), x.type_as(torch.zeros(1))

    return outer, [call(normal(3)), call(integers(3)), call(normal(3) > 0)]


@program(core=True)
def promotion_with_numbers_and_tensors():
    def outer(x, y):
        return x + 1, x * 2.5, x / 2, x // 2, x + y, x > y, x + True, torch.result_type(x, y), torch.promote_types(x.dtype, y.dtype)

    return outer, [
        call(integers(2), normal(2)),
        call(normal(2).half(), torch.tensor(2.0)),
        call(normal(2).half(), normal(2)),
        call(integers(2).to(torch.uint8), integers(2)),
        call(normal(2).bfloat16(), normal(2).half()),
    ]


@program
def dtype_comparisons():
    def outer(x):
        if x.dtype in (torch.float16, torch.bfloat16):
            x = x.float()
        kinds = x.dtype == torch.float32, x.dtype is torch.float64, x.dtype.is_floating_point, x.dtype.itemsize, str(x.dtype)
        return x * 2, kinds

    return outer, [call(normal(2).to(dtype)) for dtype in FLOATS]


@program
def finfo_and_iinfo():
    def outer(scores, mask):
        lowest = torch.finfo(scores.dtype).min
        return scores.masked_fill(mask, lowest).softmax(-1), torch.finfo(scores.dtype).eps, torch.iinfo(torch.int32).max, torch.finfo(torch.bfloat16).bits

    mask = torch.tensor([True, False, False])
    return outer, [call(normal(3).to(dtype), mask) for dtype in FLOATS]


@program
def device_objects():
    def outer(x):
        device = torch.device("cpu")
        facts = x.device == device, x.device.type, x.is_cuda, str(x.device), x.device.index, device == torch.device("cuda", 0)
        return torch.ones(2, device=x.device) + x, facts

    return outer, [call(normal(2))]


@program
def device_argument():
    def outer(x, device):
        return torch.arange(x.shape[0], device=device) + x.to(device), x.cpu() is x, torch.cuda.is_available() and device == "cuda"

    return outer, [call(normal(2), "cpu"), call(normal(2), torch.device("cpu"))]


@program
def half_precision_arithmetic():
    def outer(x, w):
        y = x @ w
        return y.softmax(-1), torch.nn.functional.layer_norm(y, (3,)), y.sum(), (y.float() ** 2).mean().to(y.dtype)

    return outer, [call(normal(2, 4).to(dtype), normal(4, 3).to(dtype)) for dtype in (torch.bfloat16, torch.float16)]


@program
def mixed_precision_by_hand():
    def outer(x, weight):
        normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return weight * normed.to(x.dtype)

    return outer, [call(normal(2, 4).bfloat16(), leaf(4)), call(normal(2, 4), leaf(4))]


@program
def integer_arithmetic():
    def outer(a, b):
        return a // b, a % b, a / b, torch.div(a, b, rounding_mode="trunc"), -a, a**2, a.sum(), a.float().mean(), a.clamp(2, 5), a.bitwise_and(3)

    return outer, [call(integers(4) - 5, integers(4, low=1)), call(integers(2).int(), integers(2, low=1).short())]


@program
def integer_overflow_wraps():
    def outer(x):
        return x + 1, x * 2, x.sum(), x.to(torch.int64) + 1, ~x, x.prod(dtype=torch.int64)

    return outer, [call(torch.tensor([255, 1], dtype=torch.uint8)), call(torch.tensor([127, -128], dtype=torch.int8))]


@program
def boolean_tensors():
    def outer(a, b):
        return a & b, a | ~b, a ^ b, a.sum(), a.any(), b.all(), a.float().mean(), torch.where(a, 1, 0), a == b, a * 3

    return outer, [call(normal(3) > 0, normal(3) > 0), call(normal(2, 2) > 0, normal(2) > 0)]


@program
def float_to_integer_rounding():
    def outer(x):
        return x.int(), x.round(), x.floor(), x.ceil(), x.trunc(), x.frac(), x.round(decimals=1), x.fmod(2), x.remainder(2), x.sign()

    return outer, [call(torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.7])), call(normal(3) * 10)]


@program
def double_precision_stays_double():
    def outer(x, n):
        return x * n + 1.0, torch.sin(x) / 3, x.mean(), torch.tensor(0.1, dtype=x.dtype) * x, x + torch.ones(1)

    return outer, [call(normal(3).double(), 0.1), call(normal(3).double(), 3)]


@program
def matmul_precision_switch():
    def outer(a, b):
        torch.set_float32_matmul_precision("high")
        return a @ b, torch.get_float32_matmul_precision()

    return outer, [call(normal(2, 2), normal(2, 2))]


@program
def default_dtype_changed_inside():
    def outer(n):
        torch.set_default_dtype(torch.float64)
        x = torch.ones(n)
        torch.set_default_dtype(torch.float32)
        return x, torch.ones(n)

    return outer, [call(2), call(3)]


@program
def dtype_in_containers_and_tables():
    table = {"half": torch.float16, "full": torch.float32}

    def outer(x, name):
        dtype = table.get(name, x.dtype)
        return x.to(dtype), {torch.float16: "16", torch.float32: "32"}.get(dtype, "other"), getattr(torch, "int32")

    return outer, [call(normal(2), "half"), call(normal(2), "full"), call(normal(2).double(), "same")]


@program
def sums_and_means_with_dtype():
    def outer(x):
        return x.sum(dtype=torch.float64), x.mean(dtype=torch.float64, dim=0), torch.cumsum(x, 0, dtype=torch.float32), x.softmax(-1, dtype=torch.float32)

    return outer, [call(normal(2, 3).half()), call(normal(2, 3))]


@program
def complex_dtypes():
    def outer(z):
        return z * (1 + 2j), z.abs(), z.angle(), z.real + z.imag, z.dtype.is_complex, z.sum(), z.conj() @ z, torch.is_complex(z)

    return outer, [call(torch.complex(count(2), positive(2))), call(torch.complex(count(3).double(), count(3).double()))]


@program
def float8_and_quantised_storage():
    def outer(x):
        packed = x.to(torch.float8_e4m3fn)
        return packed.float(), packed.dtype, (x * 10).round().clamp(-128, 127).to(torch.int8)

    return outer, [call(normal(4)), call(normal(2, 2))]


@program
def where_and_promotion():
    def outer(mask, x):
        return torch.where(mask, x, 0), torch.where(mask, 1.0, x), torch.where(mask, x, x.double()), torch.maximum(x, torch.tensor(0).to(x.dtype))

    return outer, [call(normal(3) > 0, normal(3)), call(normal(2) > 0, integers(2))]


@program(raises=RuntimeError)
def inplace_result_type_refused():
    def outer(x, y):
        x += y
        return x

    return outer, [call(integers(2), integers(2)), call(integers(2), normal(2))]
