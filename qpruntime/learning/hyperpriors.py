"""Priors on hyper-parameters, by name: densities of logarithms, which fits maximise, and slopes.

A prior is one of a parameter x; what is added to the objective is the log density of log x, which
has a factor of x more. The mode of that is the same in whatever unit x is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._formatting import meant
from qpruntime._special import HALF_LOG_2PI
from qpruntime._typing import Array
from qpruntime._validation import number, shown
from qpruntime.errors import InputError

__all__ = ["PRIORS", "Priors", "checked_priors", "priors_of"]

#: Names of priors, and what each number means.
PRIORS = {
    "half-normal": ("scale",),
    "log-normal": ("median", "deviation of the logarithm"),
    "gamma": ("shape", "scale"),
    "inverse-gamma": ("shape", "scale"),
    "pc-variance": ("deviation", "probability that the square root is above it"),
    "pc-deviation": ("deviation", "probability of more"),
    "pc-length": ("length", "probability of less", "dimensions"),
}
# Step of the fourth-order differences in the logarithm for distributions of SciPy.
_STEP = 1e-3
# Value that stands for the log density outside the support.
_OUTSIDE_SUPPORT = -1e10


def checked_priors(user_priors: object) -> dict[str, Any] | None:
    """Return ``priors=`` as it is stored: tuples of a name and numbers, or frozen distributions.

    Raises
    ------
    InputError
        If a prior is neither.
    """
    if user_priors is None:
        return None
    if not isinstance(user_priors, Mapping) or not all(
        isinstance(name, str) for name in user_priors
    ):
        raise InputError(
            'priors must be None or a dict by names of parameters, such as {"length_scale": '
            f'("inverse-gamma", 3.0, 2.0)}}, got {shown(user_priors)}'
        )
    return {name: _checked(name, prior) for name, prior in user_priors.items()}


def _checked(name: str, prior: object) -> object:
    if hasattr(prior, "logpdf") and hasattr(prior, "support"):
        return prior
    if not isinstance(prior, Sequence) or isinstance(prior, str) or not prior:
        raise InputError(
            f"the prior of {name} must be a name with numbers or a frozen distribution of "
            f"scipy.stats, got {shown(prior)}"
        )
    kind, *values = prior
    if kind not in PRIORS:
        raise InputError(
            f"the prior of {name} is {shown(kind)}{meant(kind, PRIORS)}; known are: "
            + ", ".join(PRIORS)
        )
    words = PRIORS[kind]
    if kind == "pc-length" and len(values) == 2:
        values.append(1.0)
    if len(values) != len(words):
        raise InputError(f"{kind}, the prior of {name}, takes {', '.join(words)}; got {values}")
    numbers = [number(v, f"{w} of {kind}", above=0.0) for v, w in zip(values, words, strict=True)]
    if kind.startswith("pc-") and not numbers[1] < 1.0:
        raise InputError(f"{words[1]} must be below 1, got {numbers[1]:g}")
    return (kind, *numbers)


def _named(kind: str, numbers: Sequence[float], t: float) -> tuple[float, float]:
    """Return the log density of t = log x, and its slope."""
    a, b, d = (*numbers, 1.0, 1.0)[:3]
    x = math.exp(min(t, 700.0))
    if kind == "half-normal":
        square = (x / a) ** 2
        return math.log(2.0 / a) - HALF_LOG_2PI - 0.5 * square + t, 1.0 - square
    if kind == "log-normal":
        z = (t - math.log(a)) / b
        return -0.5 * z * z - math.log(b) - HALF_LOG_2PI, -z / b
    if kind == "gamma":
        value = a * (t - math.log(b)) - x / b - math.lgamma(a)
        return value, a - x / b
    if kind == "inverse-gamma":
        ratio = b / x
        return a * (math.log(b) - t) - ratio - math.lgamma(a), ratio - a
    if kind == "pc-variance":
        # The square root is exponential (Simpson et al. 2017, Section 3.3).
        rate, root = -math.log(b) / a, math.exp(min(0.5 * t, 700.0))
        return math.log(0.5 * rate) - rate * root + 0.5 * t, 0.5 - 0.5 * rate * root
    if kind == "pc-deviation":
        rate = -math.log(b) / a
        return math.log(rate) - rate * x + t, 1.0 - rate * x
    # x^(-d/2) is exponential (Fuglstad et al. 2019, Theorem 2.6).
    rate, half = -math.log(b) * a ** (0.5 * d), 0.5 * d
    power = rate * math.exp(min(-half * t, 700.0))
    return math.log(half * rate) - half * t - power, half * (power - 1.0)


def _of(prior: Any, t: float) -> tuple[float, float]:
    if isinstance(prior, tuple):
        return _named(prior[0], prior[1:], t)
    steps = np.array([0.0, -2.0, -1.0, 1.0, 2.0]) * _STEP
    with np.errstate(all="ignore"):
        value, *at = np.asarray(prior.logpdf(np.exp(t + steps)), dtype=float) + t + steps
        slope = (8.0 * (at[2] - at[1]) - (at[3] - at[0])) / (12.0 * _STEP)
    if not (math.isfinite(value) and math.isfinite(slope)):
        return _OUTSIDE_SUPPORT, 0.0
    return float(value), float(slope)


@dataclass(frozen=True)
class Priors:
    """Log density of log parameters, and its gradient: of places that have a prior.

    Attributes
    ----------
    placed : tuple
        Pairs of a place in theta and a prior.
    """

    placed: tuple[tuple[int, Any], ...]

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Return the log density at theta and its gradient."""
        total, slope = 0.0, np.zeros(theta.size)
        for place, prior in self.placed:
            value, parameter_slope = _of(prior, float(theta[place]))
            total += value
            slope[place] += parameter_slope
        return total, slope


def priors_of(
    user_priors: Mapping[str, Any] | None, kernel: Kernel, learnt: Mapping[str, Any]
) -> Priors | None:
    """Return the prior of the log parameters of a kernel and then of a likelihood.

    Parameters
    ----------
    user_priors : mapping or None
        Priors by names of parameters: full names, as in ``kernel.hyperparameters``, or endings,
        which mean all parameters whose names end so.
    kernel : scikit-learn kernel
    learnt : mapping
        Learnt parameters of the likelihood by name.

    Raises
    ------
    InputError
        If a name fits no free parameter or has two priors, or the density is 0 at the start.
    """
    if not user_priors:
        return None
    names = [h.name for h in kernel.hyperparameters if not h.fixed for _ in range(h.n_elements)]
    names += list(learnt)
    by_index: dict[int, Any] = {}
    for name, prior in user_priors.items():
        indices = [k for k, parameter in enumerate(names) if parameter == name]
        indices = indices or [
            k for k, parameter in enumerate(names) if parameter.endswith(f"__{name}")
        ]
        if not indices:
            raise InputError(
                f"priors name {name!r}{meant(name, names)}, which is no free parameter; there are: "
                + (", ".join(dict.fromkeys(names)) or "none")
            )
        for index in indices:
            if index in by_index:
                raise InputError(f"priors have two entries for {names[index]!r}: give one")
            by_index[index] = prior
    theta = kernel.theta
    for index, prior in by_index.items():
        if index < theta.size and not _of(prior, float(theta[index]))[0] > _OUTSIDE_SUPPORT:
            raise InputError(
                f"the prior of {names[index]} has no density at {math.exp(theta[index]):g}, where "
                "the kernel begins: begin inside its support"
            )
    return Priors(tuple(sorted(by_index.items(), key=lambda pair: pair[0])))
