"""Groups of few labels without end: where the maximum of each evidence lies.

    python -m scripts.studies effects_bias

Of infinitely many groups of m labels, each pattern of successes occurs with its true probability.
The expected log evidence of a group is maximised over the deviation between groups and the
intercept, which is known to no prior: what a method finds there is its bias, without noise.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize, minimize_scalar
from scipy.special import comb, log_expit, log_ndtr

from qpruntime import infer_precision

Array = NDArray[np.float64]
ONE_THREAD = True

#: Likelihood, labels of a group, deviation, intercept.
PROBLEMS = (
    ("probit", 2, 1.5, -0.5),
    ("probit", 4, 2.0, -1.0),
    ("probit", 7, 3.0, -1.0),
    ("logistic", 2, 1.5, -0.5),
    ("logistic", 4, 2.0, -1.0),
    ("logistic", 7, 3.0, -1.0),
)
_LOG_P = {"probit": log_ndtr, "logistic": log_expit}
_Z = np.linspace(-10.0, 10.0, 2001)
_W = np.exp(-0.5 * _Z**2) / np.sqrt(2.0 * np.pi) * (_Z[1] - _Z[0])


def exact(family: str, m: int, s: int, sd: float, b: float) -> float:
    """Log evidence of one group with s successes, each pattern alone, by the trapezoid rule."""
    log_p = _LOG_P[family]
    f = b + sd * _Z
    return float(np.log(_W @ np.exp(s * log_p(f) + (m - s) * log_p(-f))))


def laplace(family: str, m: int, s: int, sd: float, b: float) -> float:
    """The same by Laplace's approximation; the curvature by differences."""
    log_p = _LOG_P[family]

    def joint(z: float) -> float:
        f = b + sd * z
        return float(s * log_p(f) + (m - s) * log_p(-f) - 0.5 * z * z)

    z = minimize_scalar(lambda z: -joint(z), bracket=(-1.0, 1.0), tol=1e-10).x
    h = 1e-3
    curvature = -(joint(z + h) - 2.0 * joint(z) + joint(z - h)) / h**2
    return joint(z) - 0.5 * float(np.log(curvature))


def by_ep(corrected: bool, collapse: bool) -> Callable[..., float]:
    """By EP, rows apart or as one site."""

    def evidence(family: str, m: int, s: int, sd: float, b: float) -> float:
        y = np.where(np.arange(m) < s, 1.0, -1.0)
        A, Q = sparse.csr_array(np.ones((m, 1))), sparse.csr_array([[sd**-2.0]])
        post = infer_precision(
            A, Q, y, family, offset=b, collapse=collapse, tol=1e-8, log_det=-2.0 * np.log(sd)
        )
        found: float = post.corrected_evidence().value if corrected else post.log_evidence
        return found

    return evidence


MODELS: dict[str, Callable[..., float]] = {
    "Laplace": laplace,
    "EP by rows": by_ep(False, False),
    "EP and pairs": by_ep(True, False),
    "equal rows as one site": by_ep(False, True),
}


def maximiser(evidence: Callable[..., float], problem: tuple[str, int, float, float]) -> Array:
    """Deviation and intercept at the maximum of the expected log evidence."""
    family, m, sd, b = problem
    share = [comb(m, s) * np.exp(exact(family, m, s, sd, b)) for s in range(m + 1)]

    def less(theta: Array) -> float:
        at = float(np.exp(theta[0])), float(theta[1])
        parts = (w * evidence(family, m, s, *at) for s, w in enumerate(share))
        return -float(sum(parts))

    options = {"xatol": 1e-5, "fatol": 1e-12}
    found = minimize(less, [np.log(sd), b], method="Nelder-Mead", options=options).x
    return np.array([np.exp(found[0]), found[1]])


OPTIONS = {"models": {"choices": tuple(MODELS), "default": tuple(MODELS)}}


def main(options: Namespace) -> None:
    """Print the table."""
    print("| labels of a group, truth | " + " | ".join(options.models) + " |")
    print("| --- |" + " --- |" * len(options.models))
    for problem in PROBLEMS:
        family, m, sd, b = problem
        chosen = [MODELS[name] for name in options.models]
        cells = ["{:.3f}, {:.3f}".format(*maximiser(own, problem)) for own in chosen]
        print(f"| {family} {m}: {sd:g}, {b:g} | " + " | ".join(cells) + " |", flush=True)
