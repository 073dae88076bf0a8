"""Scalar special functions as numba kernels: the normal distribution, exact in both tails.

Written here because ``scipy.special.cython_special`` hands out ctypes pointers, which a numba cache
cannot hold. Each is tested against mpmath or scipy over its whole range.
"""

from __future__ import annotations

import math

from qpruntime._numba import contracted, kernel

__all__ = ["erfcx", "log_ndtr", "mills", "ndtri_density", "power_peak_ratio", "probit_series"]

_SQRT1_2 = math.sqrt(0.5)
_SQRT_2_PI = math.sqrt(2.0 / math.pi)
_INV_SQRT_PI = 1.0 / math.sqrt(math.pi)
INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@kernel
def erfcx(x: float) -> float:
    """exp(x^2) erfc(x) for x >= 0 (rational forms of W. J. Cody, 1969)."""
    if x < 0.46875:
        return math.exp(x * x) * math.erfc(x)
    if x <= 4.0:
        p = 2.15311535474403846e-8
        p = p * x + 5.64188496988670089e-1
        p = p * x + 8.88314979438837594e0
        p = p * x + 6.61191906371416295e1
        p = p * x + 2.98635138197400131e2
        p = p * x + 8.81952221241769090e2
        p = p * x + 1.71204761263407058e3
        p = p * x + 2.05107837782607147e3
        p = p * x + 1.23033935479799725e3
        q = x + 1.57449261107098347e1
        q = q * x + 1.17693950891312499e2
        q = q * x + 5.37181101862009858e2
        q = q * x + 1.62138957456669019e3
        q = q * x + 3.29079923573345963e3
        q = q * x + 4.36261909014324716e3
        q = q * x + 3.43936767414372164e3
        q = q * x + 1.23033935480374942e3
        return p / q
    if x > 1e8:
        return _INV_SQRT_PI / x
    s = 1.0 / (x * x)
    p = 1.63153871373020978e-2
    p = p * s + 3.05326634961232344e-1
    p = p * s + 3.60344899949804439e-1
    p = p * s + 1.25781726111229246e-1
    p = p * s + 1.60837851487422766e-2
    p = p * s + 6.58749161529837803e-4
    q = s + 2.56852019228982242e0
    q = q * s + 1.87295284992346725e0
    q = q * s + 5.27905102951428412e-1
    q = q * s + 6.05183413124413191e-2
    q = q * s + 2.33520497626869185e-3
    return (_INV_SQRT_PI - s * p / q) / x


@kernel
def log_ndtr(x: float) -> float:
    """Return log Phi(x) for every x."""
    if x > 0.0:
        return math.log1p(-0.5 * math.erfc(x * _SQRT1_2))
    if x > -1.0:
        return math.log(0.5 * math.erfc(-x * _SQRT1_2))
    return math.log(0.5 * erfcx(-x * _SQRT1_2)) - 0.5 * x * x


@kernel
def mills(z: float) -> float:
    """Return phi(z)/Phi(z), the inverse Mills ratio at -z, without overflow."""
    if z > 0.0:
        return INV_SQRT_2PI * math.exp(-0.5 * z * z) / (1.0 - 0.5 * math.erfc(z * _SQRT1_2))
    return _SQRT_2_PI / erfcx(-z * _SQRT1_2)


@kernel
def probit_series(z: float) -> tuple[float, float, float]:
    """Return r, r + z and 1 - r (r + z) for r = phi(z)/Phi(z), none of them by cancellation.

    The last is the variance of a unit normal truncated to f > -z. Below z = -5 all three come from
    Laplace's continued fraction r = x + 1/(x + 2/(x + 3/...)), x = -z.
    """
    if z > -5.0:
        r = mills(z)
        d = r + z
        return r, d, 1.0 - r * d
    x = -z
    t = x
    # 32 terms leave less than 1e-16 at x = 5, where the fraction converges most slowly.
    terms = 32 if x < 12.0 else 12
    for n in range(terms, 2, -1):
        t = x + n / t
    e = 2.0 / t
    d = 1.0 / (x + e)
    return x + d, d, (e - d) / (x + e)


@kernel
def ndtri_density(p: float) -> tuple[float, float]:
    """Return (phi(x), x) at x = Phi^-1(p), 0 < p <= 1/2 (M. J. Wichura, 1988, AS 241)."""
    q = p - 0.5
    if q > -0.425:
        r = 0.180625 - q * q
        a = 2509.0809287301226727
        a = a * r + 33430.575583588128105
        a = a * r + 67265.770927008700853
        a = a * r + 45921.953931549871457
        a = a * r + 13731.693765509461125
        a = a * r + 1971.5909503065514427
        a = a * r + 133.14166789178437745
        a = a * r + 3.387132872796366608
        b = 5226.495278852854561
        b = b * r + 28729.085735721942674
        b = b * r + 39307.89580009271061
        b = b * r + 21213.794301586595867
        b = b * r + 5394.1960214247511077
        b = b * r + 687.1870074920579083
        b = b * r + 42.313330701600911252
        b = b * r + 1.0
        x = q * a / b
        return INV_SQRT_2PI * math.exp(-0.5 * x * x), x
    r = math.sqrt(-math.log(p))
    if r <= 5.0:
        r -= 1.6
        a = 7.7454501427834140764e-4
        a = a * r + 0.0227238449892691845833
        a = a * r + 0.24178072517745061177
        a = a * r + 1.27045825245236838258
        a = a * r + 3.64784832476320460504
        a = a * r + 5.7694972214606914055
        a = a * r + 4.6303378461565452959
        a = a * r + 1.42343711074968357734
        b = 1.05075007164441684324e-9
        b = b * r + 5.475938084995344946e-4
        b = b * r + 0.0151986665636164571966
        b = b * r + 0.14810397642748007459
        b = b * r + 0.68976733498510000455
        b = b * r + 1.6763848301838038494
        b = b * r + 2.05319162663775882187
        b = b * r + 1.0
    else:
        r -= 5.0
        a = 2.01033439929228813265e-7
        a = a * r + 2.71155556874348757815e-5
        a = a * r + 0.0012426609473880784386
        a = a * r + 0.026532189526576123093
        a = a * r + 0.29656057182850489123
        a = a * r + 1.7848265399172913358
        a = a * r + 5.4637849111641143699
        a = a * r + 6.6579046435011037772
        b = 2.04426310338993978564e-15
        b = b * r + 1.4215117583164458887e-7
        b = b * r + 1.8463183175100546818e-5
        b = b * r + 7.868691311456132591e-4
        b = b * r + 0.0148753612908506148525
        b = b * r + 0.13692988092273580531
        b = b * r + 0.59983220655588793769
        b = b * r + 1.0
    x = -a / b
    return INV_SQRT_2PI * math.exp(-0.5 * x * x), x


# R = 1 + sum over k of e^k w^2 times a polynomial in w with these coefficients, the
# highest power first; they are exact quotients.
_TAIL_1 = -1 / 9
_TAIL_2 = (-2047 / 972, 15 / 4, -73 / 48)
_TAIL_3 = (-348142 / 6561, 113509 / 648, -84496 / 405, 150661 / 1440, -1823 / 100)
_TAIL_4 = (
    -15436287677 / 9447840,
    1366686971 / 174960,
    -17658784921 / 1166400,
    235133093 / 15552,
    -2807831203 / 345600,
    877997 / 400,
    -9101 / 40,
)
_TAIL_5 = (
    -225828788669851 / 3826375200,
    19366995923 / 52488,
    -31101374853707 / 31492800,
    2575329289379 / 1749600,
    -1378020742423 / 1036800,
    670520360051 / 907200,
    -1109869346323 / 4536000,
    48636337 / 1120,
    -3026433 / 980,
)
_TAIL_6 = (
    -1008962013758499863 / 413248521600,
    673353710036152841 / 35712835200,
    -9193112353066793369 / 142851340800,
    337288364368308203 / 2645395200,
    -13318930158293988679 / 82301184000,
    1324872009434473 / 9676800,
    -406286296724617553 / 5225472000,
    1829920082701 / 63000,
    -238500677844181 / 35280000,
    1281243703 / 1470,
    -5168001 / 112,
)


@contracted
def power_peak_ratio(n: float, b: float) -> float:
    """sigma*/sigma_EP of the density g^n exp(-(g - b)^2/2) on g > 0, for b large enough.

    Let g = g1 + s x about the peak at g1, of curvature 1/s^2 = 1 + n/g1^2. The transport map from
    the standard normal to x is a series in 1/sqrt(n) whose terms are polynomials, and so are its
    moments. The ratio is the series above in w = (n/g1^2) s^2 and e = w/n; six terms are good to
    2e-11 where b sqrt(b^2 + 4n) > 80 (tests/projection/test_open.py).
    """
    g1 = 0.5 * (b + math.sqrt(b * b + 4.0 * n))
    a = n / (g1 * g1)
    w = a / (1.0 + a)
    e = w / n
    p = 0.0
    for c in _TAIL_6:
        p = p * w + c
    total = e * p
    p = 0.0
    for c in _TAIL_5:
        p = p * w + c
    total = e * (p + total)
    p = 0.0
    for c in _TAIL_4:
        p = p * w + c
    total = e * (p + total)
    p = 0.0
    for c in _TAIL_3:
        p = p * w + c
    total = e * (p + total)
    p = 0.0
    for c in _TAIL_2:
        p = p * w + c
    total = e * (p + total)
    return 1.0 + e * w * w * (_TAIL_1 + total)
