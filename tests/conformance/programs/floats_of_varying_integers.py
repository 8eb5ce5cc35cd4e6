"""Floats computed from integers and sizes that vary: exact to the bit, as Python rounds."""

from __future__ import annotations

import math

from tests.conformance.catalogue import call, count, normal, program


@program(core=True)
def floats_made_of_varying_integers():
    def outer(x, n):
        a = n * 0.1
        b = a * 3
        c = (n + 0.1) + 0.2
        d = n / 3 * 3
        e = (n * 1e20) + 1 - n * 1e20
        f = n * 0.1 + n * 0.2
        g = n / 10 + n / 10 + n / 10
        h = 1 / n * n
        i = n**0.5 * n**0.5
        j = n**-1
        k = (n - 0.1) * (n + 0.1)
        l = n * 2.0 - n - n
        m = n * 0.5 * 0.5 / 0.25
        return (
            x * b,
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            h,
            i,
            j,
            k,
            l,
            m,
            n * 0.0,
            n - 0.0,
            0.0 - n,
            n // 0.3,
            n % 0.3,
            int(n * 0.1),
            round(n * 0.1, 2),
            f"{b:.20f}",
            (n * 0.1) == 0.7,
            n * 1.0,
            type(n * 2.5).__name__,
            math.floor(n / 3),
            math.ceil(n * 0.3),
            int(n / 3),
            n / 1,
            -(n / 2),
        )

    return outer, [call(count(3), v) for v in (2, 3, 7, 11, 13, 123457)]


@program
def floats_made_of_sizes():
    def outer(x):
        n = x.shape[0]
        a = n * 0.1
        return (
            x * (a * 3),
            a,
            a * 3,
            n / 3 * 3,
            n / 10 + n / 10 + n / 10,
            n**0.5,
            n**-0.5,
            1 / n * n,
            math.sqrt(n) * math.sqrt(n),
            round(n / 3, 2),
            (n * 0.1) > 0.7,
            n // 2 / 2,
            n / 3 // 1,
            math.log(n) / math.log(2),
            1.0 / math.sqrt(n),
            x.mean() * (n / (n - 1)),
            n % 0.3,
            x / (n**0.5),
        )

    return outer, [call(normal(v)) for v in (2, 3, 7, 11, 13, 57)]


@program
def zero_sized_and_negative_varying_integers():
    def outer(x, n):
        return (
            x + n,
            n * 2.5,
            n / 2,
            -n * 0.5,
            n**2 * 1.0,
            n * -0.0,
            n + 0.0,
            float(n),
            n % 3,
            n // 3,
            abs(n) * 0.5,
            (n or 5) * 2,
            n and 3,
            not n,
            n == 0,
            n * 2.5 if n else "z",
        )

    return outer, [call(count(3), v) for v in (5, 6, 0, -1, -7, 1)]
