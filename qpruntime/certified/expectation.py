"""E log p(y|f) under f ~ N(mean, std^2), where the likelihood does not declare it.

Student's t has an integral of one positive function, heaviside has no finite expectation, and any
other log density is integrated on panels that are halved until they resolve it.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.jit import MOMENTS, Pointer, call_landmark, call_split, kernel
from qpruntime.likelihoods import Likelihood
from qpruntime.quadrature.panel import NODES, WEIGHTS, N, last_coefficients
from qpruntime.quadrature.tilted import EXHAUSTED, NOT_A_NUMBER, OK

__all__ = ["expected_of", "integrate_expected"]

_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
#: Of the trapezoid rule in log t: exp(-pi^2/_STEP) = 1e-17; terms below exp(-_CUT) are left out.
_STEP, _CUT = 0.25, 40.0
#: Standard deviations beyond which a log density counts nothing: exp(-_REACH^2/2) = 2e-22.
_REACH = 10.0
#: Panels to begin with, those evaluated at most, and those that wait.
_FIRST, _MOST, _STACK = 8, 4000, 256
#: A panel is resolved if its last coefficients are below this part of its largest value, or below
#: this part of the whole.
_RELATIVE, _ABSOLUTE = 1e-13, 1e-15
_MARKS = 16


def _student_t(mean, std, y, theta):
    # With X = (f - y)/scale ~ N(d, s^2): E log(1 + X^2/nu) is the integral over log t of
    # e^-t (1 - M(t)), M(t) = E exp(-t X^2/nu) = a^-1/2 exp(-t d^2/(nu a)), a = 1 + 2 t s^2/nu.
    nu, scale = theta[0], theta[1]
    d, s = (mean - y) / scale, std / scale
    d2, s2 = d * d / nu, 2.0 * s * s / nu
    u = -math.log1p(s2 + d2) - _CUT
    value, by_d, by_s = 0.0, 0.0, 0.0
    while True:
        t = math.exp(u)
        if t > _CUT:
            break
        a = 1.0 + t * s2
        pull = t * d2 / a
        e = -0.5 * math.log1p(t * s2) - pull
        weight = math.exp(-t)
        value -= weight * math.expm1(e)
        part = weight * math.exp(e) * t / a
        by_d += part
        by_s += part * (1.0 - 2.0 * pull)
        u += _STEP
    half = 0.5 * (nu + 1.0) * _STEP
    slope = -half * 2.0 * d / nu * by_d / scale
    return theta[2] - half * value, slope, half * 2.0 / nu * by_s / (scale * scale)


def _heaviside(mean, std, y, theta):
    return -math.inf, math.nan, math.nan


_EXPECTED = {
    "heaviside": Pointer(_heaviside, MOMENTS),
    "student-t": Pointer(_student_t, MOMENTS),
}


def expected_of(likelihood: Likelihood) -> Pointer | None:
    """Return `Likelihood.expected`, or what stands here for it; None for any other density."""
    return likelihood.expected or (
        _EXPECTED.get(likelihood.name) if likelihood.recipe is None else None
    )


@kernel
def _fill(split, mean, std, y, theta, base, a, b, q):
    """Log p less `base`, times the normal, at the nodes of [a, b] in standard deviations."""
    for j in range(N):
        x = 0.5 * (a + b) + 0.5 * (b - a) * NODES[j]
        f = mean + std * x
        rest, curvature = call_split(split, f, y, theta)
        e = rest - 0.5 * curvature * f * f
        if math.isnan(e):
            return NOT_A_NUMBER
        q[j] = (e - base) * _INV_SQRT_2PI * math.exp(-0.5 * x * x)
    return OK


@kernel
def integrate_expected(split, landmark, mean, std, y, theta, out):
    """Fill `out` with (E log p, its derivatives by mean and by standard deviation)."""
    rest, curvature = call_split(split, mean, y, theta)
    base = rest - 0.5 * curvature * mean * mean
    if not abs(base) < math.inf:
        base = 0.0
    edges = np.empty(_FIRST + 1 + _MARKS)
    for k in range(_FIRST + 1):
        edges[k] = _REACH * (2.0 * k / _FIRST - 1.0)
    count = _FIRST + 1
    for k in range(_MARKS):
        x = (call_landmark(landmark, y, theta, k) - mean) / std
        if math.isnan(x):
            break
        if abs(x) < _REACH:
            edges[count] = x
            count += 1
    edges = np.sort(edges[:count])
    stack, q = np.empty((_STACK, 2)), np.empty(N)
    total, size = np.zeros(3), 0.0
    evaluated = 0
    for i in range(count - 1):
        stack[0, 0], stack[0, 1] = edges[i], edges[i + 1]
        pending = 1
        while pending:
            pending -= 1
            a, b = stack[pending, 0], stack[pending, 1]
            half, centre = 0.5 * (b - a), 0.5 * (a + b)
            status = _fill(split, mean, std, y, theta, base, a, b, q)
            if status != OK:
                return status
            evaluated += 1
            largest = 0.0
            for j in range(N):
                largest = max(largest, abs(q[j]))
            if largest == math.inf:
                out[0], out[1], out[2] = -math.inf, math.nan, math.nan
                return OK
            last = last_coefficients(q)
            rough = last > _RELATIVE * largest and last * half > _ABSOLUTE * max(size, largest)
            if rough and b - a > 1e-14 * max(1.0, abs(centre)) and pending + 2 <= _STACK:
                if evaluated > _MOST:
                    return EXHAUSTED
                stack[pending, 0], stack[pending, 1] = centre, b
                stack[pending + 1, 0], stack[pending + 1, 1] = a, centre
                pending += 2
                continue
            for j in range(N):
                x = centre + half * NODES[j]
                part = half * WEIGHTS[j] * q[j]
                total[0] += part
                total[1] += part * x
                total[2] += part * (x * x - 1.0)
                size += abs(part)
    out[0], out[1], out[2] = base + total[0], total[1] / std, total[2] / std
    return OK
