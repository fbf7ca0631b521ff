"""Student's t distribution, in the standard library alone: scipy would be 100 MB for two functions.

The regularised incomplete beta function is the continued fraction of DLMF 8.17.22, evaluated by Lentz's method.
"""

from __future__ import annotations

import functools
import math

_SMALL = 1e-300
_ENOUGH = 1e-15  # relative, of the continued fraction and of the quantile


def two_sided(t: float, degrees: int) -> float:
    """Return the probability that a t variable is at least as far from 0 as ``t``."""
    if math.isinf(t):
        return 0.0
    return _beta(degrees / 2, 0.5, degrees / (degrees + t * t))


@functools.cache
def quantile(confidence: float, degrees: int) -> float:
    """Return the t that leaves ``1 - confidence`` outside of -t to t, such as 4.30 for 0.95 and 2 degrees."""
    low, high = 0.0, 1.0
    while two_sided(high, degrees) > 1 - confidence:
        high *= 2
    while high - low > _ENOUGH * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if two_sided(middle, degrees) > 1 - confidence else (low, middle)
    return high


def _beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - _beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    return front / a * _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 1000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away(1 + term * d)
            c = _away(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < _ENOUGH:
            break
    return value


def _away(value: float) -> float:
    return value if abs(value) > _SMALL else _SMALL
