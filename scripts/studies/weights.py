"""Whether the empirical weights of the corrections hold, and what `check()` says where they miss.

The weights are those of fourth-order pairs in evidence and means, one half, and of linear response
in the blend of two log variances, two thirds. On all problems of `truth`: errors at other
weights beside chains of their own; the terms that come next to the pairs of fourth order in an
expansion by loops; and the words of `check()`. One JSON line for each problem; what is there is not
done again. docs/corrections.md is made of the records:

    python -m scripts.studies weights --data DIRECTORY
"""

from __future__ import annotations

import math
import warnings
from argparse import Namespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from qpruntime import CorrectionWarning, SamplingWarning, infer
from qpruntime.errors import QPError
from qpruntime.inference.corrections.ep_fixed_point import FixedPoint, normal_of
from scripts.records import RESULTS, Records
from scripts.studies.chains import sample
from scripts.studies.truth import rms
from scripts.studies.truth_problems import Problem, problems

Array = NDArray[np.float64]

FOURTH = (0.0, 0.25, 0.5, 0.75, 1.0)
RESPONSE = (0.0, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 1.0)
#: What `check()` speaks of, by words that only that sentence has.
SUBJECTS = {
    "variances": "EP's variances are about",
    "means": "EP's means are off",
    "evidence": "EP's log evidence is about",
    "peaks": "several peaks",
    "mirrored": "mirrored peaks",
    "sites": "the sites are",
    "refused": "no fixed point of EP to start from",
}


def correlations(found: FixedPoint) -> Array:
    """Of the sites under EP's normal, with nothing on the diagonal."""
    std = found.fixed.std
    r: Array = found.V / np.outer(std, std)
    np.fill_diagonal(r, 0.0)
    return r


def expansion(found: FixedPoint) -> dict[str, float]:
    """Pairs of third and fourth order, and the other terms of three loops: all of third order.

    A term of L loops has L - 1 more correlations than sites. Three loops are pairs of fourth
    cumulants, triangles of two third and one fourth, squares and tetrahedra of third.
    """
    r = correlations(found)
    h = found.tilted.hermite
    h3, h4 = h[:, 3], h[:, 4]
    edges = h3[:, None] * (r * r) * h3
    pairs = {f"pairs {k}": h[:, k] @ r**k @ h[:, k] / (2.0 * math.factorial(k)) for k in (3, 4, 6)}
    triangles = np.sum(r * np.outer(h3, h3) * ((r * r * h4) @ (r * r))) / 8.0
    turn = edges @ r
    squares = np.sum(turn * turn.T) / 16.0
    tetrahedra = 0.0
    for j in range(len(r)):
        around = (r[j] * h3)[:, None] * r
        tetrahedra += h3[j] * np.sum((around @ around) * around.T) / 24.0
    terms = {**pairs, "triangles": triangles, "squares": squares, "tetrahedra": tetrahedra}
    return {name: float(value) for name, value in terms.items()}


def shifts(found: FixedPoint) -> tuple[Array, dict[float, Array]]:
    """Linear response of the variances, and shifts of the means by the weight of fourth order.

    The formulas of `qpruntime.inference.corrections.linear_response`, in plain NumPy.
    """
    V, s, h = found.V, found.fixed.std, found.tilted.hermite.T
    n, v, r = len(s), s * s, correlations(found)
    h3, h4 = h[3], h[4]
    W = V * V / (v * v)[:, None] - np.eye(n)
    A = -0.5 * (s * h3)[:, None] * W
    E = (V @ A) / v[:, None] - A
    Mx = (v * v)[:, None] * (np.eye(n) - 0.5 * h4[:, None] * W + (h3 / s)[:, None] * E)
    B = -np.linalg.solve(Mx, (s * h3)[:, None] * V)
    response = v + np.einsum("ij,ji->i", V @ A, B)
    moved = {}
    for fourth in FOURTH:
        D, p0, pt, pv = np.zeros((n, n)), np.zeros(n), np.zeros(n), np.zeros(n)
        for k, weight in ((3, 1.0), (4, fourth)):
            P = weight * (r**k @ h[k]) / math.factorial(k)
            D += weight * k * r ** (k - 1) * np.outer(h[k], h[k]) / math.factorial(k)
            p0 += P * h[k + 1] / s
            below = h[k + 2] + 2.0 * k * h[k] + k * (k - 1) * h[k - 2]
            pt += P * (0.5 * h3 * (h[k + 1] + k * h[k - 1]) - 0.5 * below)
            pv -= 0.5 * P * k * (h[k] + (k - 1) * h[k - 2]) / v
        G = D / np.outer(s, s)
        c = -0.5 * np.sum((V @ G) * V, axis=1) + 0.5 * (V * V) @ (np.sum(D * r, axis=0) / v)
        c += (V * V) @ (pt / v - pv) - v * pt
        moved[fourth] = V @ (p0 - (s * h3) * np.linalg.solve(Mx.T, c + A.T @ (V @ p0)))
    return response, moved


def study(problem: Problem, seconds: float) -> dict[str, Any]:
    """All of one problem."""
    options: dict[str, Any] = {"mean": problem.mean, "tol": 1e-8, "max_sweeps": 300}
    post = infer(problem.K, problem.y, problem.likelihood, "ep", **options)
    assert post._solution.observed() is not None
    words = " ".join(post.check())
    record: dict[str, Any] = {
        "name": problem.name,
        "said": [subject for subject, text in SUBJECTS.items() if text in words],
    }
    try:
        corrected = post._correcting.corrected
        if corrected.response is None or corrected.found.folded:
            return record
    except QPError:
        return record
    found = corrected.found
    fact = post.marginals(correction="fact")
    response, moved = shifts(found)
    std = found.fixed.std
    assert np.abs(moved[0.5] - found.V @ corrected.response.push).max() < 1e-8 * std.max()
    chains, _ = sample(normal_of(post._solution.observed(), post.sites), seconds, 20_000.0)
    draws = chains.draws.reshape(-1, std.size)
    mean, variance = draws.mean(axis=0), draws.var(axis=0)
    kurtosis = ((draws - mean) ** 4).mean(axis=0) / variance**2
    ratios = {
        w: (1.0 - w) * np.log(fact.variance) + w * np.log(response) - np.log(variance)
        for w in RESPONSE
    }
    return {
        **record,
        "rhat": float(chains.rhat.max()),
        "noise": [rms(chains.effective**-0.5), rms(np.sqrt((kurtosis - 1.0) / chains.effective))],
        "spread": float(np.mean(fact.spread)),
        "skewness": rms(fact.skewness),
        "correlation": float(np.median(np.abs(correlations(found)).max(axis=1))),
        "shift": rms(moved[0.5] / std),
        "means": [rms((found.fixed.mean + moved[w] - mean) / np.sqrt(variance)) for w in FOURTH],
        "log_variances": [
            [float(x.mean()), rms(x), float(np.abs(x).max())] for x in ratios.values()
        ],
        "terms": expansion(found),
    }


OPTIONS = {"data": {}, "kept": {"default": RESULTS / "weights.jsonl"}, "seconds": {"default": 6.0}}


def main(options: Namespace) -> None:
    """Run what is missing."""
    records = Records(options.kept, "name")
    for name, make in problems(options.data).items():
        if (name,) not in records:
            with threadpool_limits(1), warnings.catch_warnings():
                for kind in (CorrectionWarning, SamplingWarning, RuntimeWarning, UserWarning):
                    warnings.simplefilter("ignore", kind)
                records.add(study(make(), options.seconds))
            print(name, records.records[(name,)]["said"], flush=True)
