"""Small `@triton.jit` functions that generated files define when a kernel calls them.

`device_sources` prints each into the file as it stands here; importing this module is never needed.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def checked(value, valid, mask=None):
    """The value, as wide as `valid` and the mask; an assertion fails where it is not valid (and the mask holds), as in eager."""
    tl.device_assert(valid, "a value out of range", mask)
    value = tl.broadcast(value, valid)[0]
    return value if mask is None else tl.broadcast(value, mask)[0]


@triton.jit
def larger(a, b):
    """The larger of two numbers; NaN if either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    """The smaller of two numbers; NaN if either is NaN."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def larger_number(a, b):
    """The larger of two numbers; the other one if one is NaN."""
    return tl.where(a != a, b, tl.where(b != b, a, tl.maximum(a, b)))


@triton.jit
def smaller_number(a, b):
    """The smaller of two numbers; the other one if one is NaN."""
    return tl.where(a != a, b, tl.where(b != b, a, tl.minimum(a, b)))


@triton.jit
def to_float8_e4m3fn(x):
    """fp32 as float8_e4m3fn: what would round beyond its largest number, 448, is NaN; hardware stops there."""
    return tl.where(tl.abs(x) <= 464.0, x, float("nan")).to(tl.float8e4nv)


@triton.jit
def to_float8_e5m2(x):
    """fp32 as float8_e5m2: what would round beyond its largest number, 57344, is infinite; hardware stops there."""
    bits = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    beyond = tl.where(x == x, bits & 0x80 | 0x7C, bits)
    return tl.where(tl.abs(x) < 61440.0, bits, beyond).to(tl.float8e5, bitcast=True)


@triton.jit
def nearest_quotient(a, b):
    """a / b of fp32, without the branch of `tl.div_rn`: hardware's estimate and one step by the rest (Markstein, 1990).

    It is 2 units off at most where the rest, or the inverse, is below the smallest normal number or above the largest one.
    """
    estimate = a / b
    inverse = tl.full([], 1.0, tl.float32) / b  # never of two literals, which Python would divide
    nearest = tl.fma(tl.fma(-b, estimate, a), inverse, estimate)
    return tl.where((tl.abs(nearest) < float("inf")) & (estimate != 0.0), nearest, estimate)


@triton.jit
def multiply(a, b):
    """The product of two numbers."""
    return a * b


@triton.jit
def first_largest(value_a, place_a, value_b, place_b):
    """The larger value with its place; NaN is largest, the first place wins ties."""
    a_is_nan, b_is_nan = value_a != value_a, value_b != value_b
    better = (value_a > value_b) | (a_is_nan & (value_b == value_b))
    same = (value_a == value_b) | (a_is_nan & b_is_nan)
    keep = better | (same & (place_a < place_b))
    return tl.where(keep, value_a, value_b), tl.where(keep, place_a, place_b)


@triton.jit
def first_smallest(value_a, place_a, value_b, place_b):
    """The smaller value with its place; NaN is smallest, the first place wins ties."""
    a_is_nan, b_is_nan = value_a != value_a, value_b != value_b
    better = (value_a < value_b) | (a_is_nan & (value_b == value_b))
    same = (value_a == value_b) | (a_is_nan & b_is_nan)
    keep = better | (same & (place_a < place_b))
    return tl.where(keep, value_a, value_b), tl.where(keep, place_a, place_b)


@triton.jit
def quarter_turns(x):
    """The nearest whole number of quarter turns in its lowest bits, and the rest (reduction by Cody and Waite, 1980).

    For fp32 below 100,000: there the first product and difference are exact, and three parts of pi / 2 leave no error behind.
    """
    shifted = x * 0.6366197723675814 + 12582912.0
    quarters = shifted - 12582912.0
    rest = tl.fma(quarters, -1.570796251296997, x)
    rest = tl.fma(quarters, -7.549789415861596e-08, rest)
    return shifted.to(tl.int32, bitcast=True), tl.fma(quarters, -5.390302953474238e-15, rest)


@triton.jit
def sine_after(quarters, rest):
    """The sine of so many quarter turns and a rest of an eighth of a turn at most, to 1.5 ulp; the sine of -0.0 is -0.0."""
    square = rest * rest
    odd = tl.fma(tl.fma(-0.00019517, square, 0.00833218), square, -0.16666655)
    odd = tl.fma(odd, tl.fma(square, rest, 0.0), rest)
    even = tl.fma(tl.fma(2.44383793e-05, square, -1.38873669e-03), square, 4.16666469e-02)
    even = tl.fma(tl.fma(even, square, -0.5), square, 1.0)
    value = tl.where((quarters & 1) == 0, odd, even)
    return (value.to(tl.int32, bitcast=True) ^ ((quarters & 2) << 30)).to(tl.float32, bitcast=True)


@triton.jit
def sin_by_quarters(x):
    """The sine of a block; one branch for all of it, where libdevice has one for each element."""
    if tl.max(tl.abs(x)) < 100000.0:
        quarters, rest = quarter_turns(x)
        value = sine_after(quarters, rest)
    else:
        value = libdevice.sin(x)
    return value


@triton.jit
def cos_by_quarters(x):
    """The cosine of a block: the sine a quarter turn later."""
    if tl.max(tl.abs(x)) < 100000.0:
        quarters, rest = quarter_turns(x)
        value = sine_after(quarters + 1, rest)
    else:
        value = libdevice.cos(x)
    return value


@triton.jit
def float_remainder(a, b):
    """a modulo b with the sign of b, as torch.remainder."""
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def integer_remainder(a, b):
    """a modulo b with the sign of b, as torch.remainder."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def float_floor_divide(a, b):
    """a / b rounded to minus infinity, as torch.floor_divide."""
    rest = libdevice.fmod(a, b)
    quotient = (a - rest) / b
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    rounded = tl.floor(quotient)
    rounded = tl.where(quotient - rounded > 0.5, rounded + 1, rounded)
    rounded = tl.where(quotient == 0, libdevice.copysign(quotient, a / b), rounded)
    return tl.where(b == 0, a / b, rounded)


@triton.jit
def integer_floor_divide(a, b):
    """a / b rounded to minus infinity."""
    quotient = a // b
    rest = a - quotient * b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def unsigned_power(base, exponent):
    """base to a non-negative integer exponent, wrapping around."""
    result = base * 0 + 1
    factor = base
    left = exponent
    for _ in tl.static_range(64):
        result = tl.where((left & 1) == 1, result * factor, result)
        factor = factor * factor
        left = left >> 1
    return result


@triton.jit
def integer_power(base, exponent):
    """base to an integer exponent, wrapping around; negative exponents as torch.pow."""
    inverse = tl.where(base == 1, base, tl.where(base == -1, 1 - 2 * (exponent & 1), 0)).to(base.dtype)
    return tl.where(exponent < 0, inverse, unsigned_power(base, exponent))


@triton.jit
def philox_words(seed, counter):
    """Four 32-bit words of Philox-4x32-10 for each counter (Triton 3.6's own entry counts 64-bit offsets otherwise)."""
    low = counter.to(tl.uint32)
    high = (counter.to(tl.int64) >> 32).to(tl.uint32)
    return tl.philox(seed, low, high, low * 0, low * 0)


@triton.jit
def random_uniform(seed, counter):
    """A number in [0, 1) from 24 bits of Philox-4x32-10."""
    word, _, _, _ = philox_words(seed, counter)
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def random_uniform_float16(seed, counter):
    """A number in [0, 1) that float16 holds: 11 bits."""
    word, _, _, _ = philox_words(seed, counter)
    return (word >> 21).to(tl.float32) * 0.00048828125


@triton.jit
def random_uniform_bfloat16(seed, counter):
    """A number in [0, 1) that bfloat16 holds: 8 bits."""
    word, _, _, _ = philox_words(seed, counter)
    return (word >> 24).to(tl.float32) * 0.00390625


@triton.jit
def join_words(high, low):
    """53 bits of two Philox words as a float64 whole number."""
    upper = (high >> 5).to(tl.float64)
    return upper * 67108864.0 + (low >> 6).to(tl.float64)


@triton.jit
def random_uniform_float64(seed, counter):
    """A number in [0, 1) from 53 bits of Philox-4x32-10."""
    first, second, _, _ = philox_words(seed, counter)
    return join_words(first, second) * 1.1102230246251565e-16


@triton.jit
def random_normal(seed, counter):
    """A standard normal number: Box-Muller on the first two words of Philox-4x32-10."""
    first, second, _, _ = philox_words(seed, counter)
    radius = ((first >> 8).to(tl.float32) + 1.0) * 5.9604644775390625e-08
    angle = (second >> 8).to(tl.float32) * 5.9604644775390625e-08
    quarters, rest = quarter_turns(6.283185307179586 * angle)
    return tl.sqrt(-2.0 * libdevice.log(radius)) * sine_after(quarters + 1, rest)


@triton.jit
def random_normal_float64(seed, counter):
    """A standard normal number: Box-Muller on all four words of Philox-4x32-10."""
    first, second, third, fourth = philox_words(seed, counter)
    radius = (join_words(first, second) + 1.0) * 1.1102230246251565e-16
    angle = join_words(third, fourth) * 1.1102230246251565e-16
    return tl.sqrt(-2.0 * libdevice.log(radius)) * libdevice.cos(6.283185307179586 * angle)


@triton.jit
def random_bits(seed, counter):
    """The first word of Philox-4x32-10 as a non-negative int64."""
    word, _, _, _ = philox_words(seed, counter)
    return word.to(tl.int64)
