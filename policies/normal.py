"""The standard normal distribution, of which the standard library's own is not on the list of what a policy may import."""

from __future__ import annotations

from math import erfc, exp, log, pi, sqrt

ROOT_2 = sqrt(2.0)
ROOT_2_PI = sqrt(2.0 * pi)
FAR = 6.0
"""From here on the tail is replaced by its limit."""
_LEAST = 1e-12

# Rational approximation by P. J. Acklam, relative error below 1.2e-9.
_A = (-3.969683028665376e01, 2.209460984245205e02, -2.759285104469687e02, 1.383577518672690e02, -3.066479806614716e01, 2.506628277459239e00)
_B = (-5.447609879822406e01, 1.615858368580409e02, -1.556989798598866e02, 6.680131188771972e01, -1.328068155288572e01)
_C = (
    -7.784894002430293e-03,
    -3.223964580411365e-01,
    -2.400758277161838e00,
    -2.549732539343734e00,
    4.374664141464968e00,
    2.938163982698783e00,
)
_D = (7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e00, 3.754408661907416e00)
_CENTRE = 0.02425


def above(z: float) -> float:
    """Probability of more than z."""
    return 0.5 * erfc(z / ROOT_2)


def mean_above(z: float) -> float:
    """Mean of what is more than z."""
    return z + 1.0 / z - 2.0 / z**3 if z > FAR else exp(-0.5 * z * z) / ROOT_2_PI / above(z)


def positive_part(mean: float, sd: float) -> float:
    """Mean of what is above 0, nothing counting as 0."""
    if sd <= 0:
        return max(mean, 0.0)
    z = mean / sd
    return mean * above(-z) + sd * exp(-0.5 * z * z) / ROOT_2_PI


def exceeded_with(probability: float) -> float:
    """The z above which the given probability lies."""
    q = min(max(probability, _LEAST), 1.0 - _LEAST)
    if q < _CENTRE:
        return -_tail(sqrt(-2.0 * log(q)))
    if q > 1.0 - _CENTRE:
        return _tail(sqrt(-2.0 * log(1.0 - q)))
    x = 0.5 - q
    r = x * x
    a, b = _A, _B
    over = (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * x
    return over / (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1.0)


def _tail(x: float) -> float:
    c, d = _C, _D
    over = ((((c[0] * x + c[1]) * x + c[2]) * x + c[3]) * x + c[4]) * x + c[5]
    return over / ((((d[0] * x + d[1]) * x + d[2]) * x + d[3]) * x + 1.0)
