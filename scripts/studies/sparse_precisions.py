"""Sparse precisions: factors, fixed points, fits, memory, and what equal rows and pairs are worth.

    python -m scripts.studies sparse_precisions                  # all tables, about five minutes
    python -m scripts.studies sparse_precisions --models million

CPU seconds of one thread, the best of three after one run that compiles. Labels are probit ones
with three coefficients; a fit maximises the log evidence over log deviations by L-BFGS-B, each
value from the sites of those near by, to 1e-4 at last. Memory is the largest resident size less
that before.
"""

from __future__ import annotations

import resource
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import log_ndtr

from qpruntime import infer_precision
from qpruntime.effects import EffectsModel, Fixed, Groups
from qpruntime.inference.precision.cholesky import Factorised, filled
from qpruntime.inference.precision.iterate import Nearby
from qpruntime.inference.precision.pattern import Pattern
from qpruntime.inference.precision.symbolic import analyse
from qpruntime.inference.precision.symbolic_kernels import elimination_order
from scripts.benchmarks import timing

ONE_THREAD = True
_SPREAD = np.array([1e-4, 1e-2, 1e-2])


def plane(side: int) -> Any:
    """Precision of a Matern process of smoothness 1 on a square grid of nodes."""
    line = sparse.diags_array(
        [-np.ones(side - 1), 2.0 * np.ones(side), -np.ones(side - 1)], offsets=[-1, 0, 1]
    )
    one = sparse.eye_array(side)
    stiff = sparse.kron(line, one) + sparse.kron(one, line)
    root = stiff + 0.01 * sparse.eye_array(side * side)
    return sparse.csr_array(root @ root)


def chain(n: int) -> Any:
    """Precision of an AR1 of correlation .9."""
    middle = np.full(n, 1.81)
    middle[[0, -1]] = 1.0
    off = np.full(n - 1, -0.9)
    return sparse.csr_array(sparse.diags_array([off, middle, off], offsets=[-1, 0, 1]) / 0.19)


def levels(codes: Any, count: int) -> Any:
    """Rows that see one level each."""
    at = np.arange(codes.size)
    return sparse.csr_array((np.ones(codes.size), (at, codes)), shape=(codes.size, count))


def groups(n: int, first: int, second: int, nested: bool, seed: int = 0) -> tuple[Any, Any]:
    """Rows and labels of two groups of effects, the first in the second or crossed with it."""
    rng = np.random.default_rng(seed)
    one = rng.integers(0, first, n)
    two = rng.integers(0, second, first)[one] if nested else rng.integers(0, second, n)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, 2))])
    eta = X @ [-0.5, 0.5, 0.2] + rng.standard_normal(first)[one]
    eta += 0.7 * rng.standard_normal(second)[two]
    y = np.where(eta + rng.standard_normal(n) > 0.0, 1.0, -1.0)
    blocks = [sparse.csr_array(X), levels(one, first), levels(two, second)]
    return sparse.hstack(blocks, format="csr"), y


def precision(sizes: tuple[int, ...], theta: Any) -> Any:
    """Of three coefficients and groups of these log deviations."""
    parts = [np.full(size, np.exp(-2.0 * t)) for size, t in zip(sizes, theta, strict=True)]
    return sparse.csr_array(sparse.diags_array(np.concatenate([_SPREAD, *parts])))


def best(call: Callable[[], Any], rounds: int = 3) -> float:
    """CPU seconds of the quickest of a few calls."""
    return timing.best(call, rounds, time.process_time)


def factors() -> Iterator[str]:
    """Analysis, factor, selected inverse and solve."""
    yield "| precision | numbers | order | symbolic | factor | inverse | solve |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    two = [(*groups(100_000, 20_000, 1000, True)[:1], (20_000, 1000), "nested 20 000 in 1000")]
    for b in (200, 2000):
        two.append((groups(100_000, 5000, b, False)[0], (5000, b), f"crossed 5000 × {b}"))
    cases = [("plane, 10⁴ nodes", plane(100)), ("plane, 10⁵ nodes", plane(316))]
    cases.append(("chain, 10⁵ states", chain(100_000)))
    for A, sizes, words in two:
        cases.append(
            (f"{words}, 10⁵ rows", sparse.csr_array(A.T @ A + precision(sizes, (0.0, 0.0))))
        )
    for words, Q in cases:
        order = elimination_order(Q)
        symbolic = analyse(Q, order=order)
        pattern = Pattern(sparse.csr_array((1, Q.shape[0])), Q)
        values = pattern.halves(Q)

        def factorised(pattern: Pattern = pattern, values: Any = values) -> Factorised:
            panels = filled(pattern.symbolic.size, pattern.lower, values)
            return Factorised(pattern.symbolic, panels)

        one, right = factorised(), np.ones(Q.shape[0])
        found = [
            best(partial(elimination_order, Q), 1),
            best(partial(analyse, Q, order=order)),
            best(factorised),
            best(one.inverse),
            best(partial(one.solve, right)),
        ]
        yield f"| {words} | {symbolic.size:.2g} | " + " | ".join(f"{t:.3f}" for t in found) + " |"


def fitted(A: Any, y: Any, sizes: tuple[int, int], pattern: Pattern) -> tuple[float, int, Any]:
    """CPU seconds of a fit, its evaluations, and log deviations."""
    known = Nearby(3)

    def objective(theta: Any) -> tuple[float, Any]:
        Q = precision(sizes, theta)
        log_det = float(np.log(Q.data).sum())
        tol = min(max(1e-2 * known.distance(theta), 1e-4), 1e-3)
        post = infer_precision(
            A, Q, y, "probit", pattern=pattern, sites=known.at(theta), log_det=log_det, tol=tol
        )
        known.add(theta, post.sites)
        slope, gradient = post.slope(), []
        begin = 3
        for size, t in zip(sizes, theta, strict=True):
            own = np.zeros(A.shape[1])
            own[begin : begin + size] = -2.0 * np.exp(-2.0 * t)
            dQ = sparse.csr_array(sparse.diags_array(own))
            gradient.append(0.5 * (-2.0 * size - slope.against(dQ)))
            begin += size
        return -post.log_evidence, -np.array(gradient)

    begun = time.process_time()
    end = minimize(
        objective, np.zeros(2), jac=True, method="L-BFGS-B", options={"ftol": 1e-8, "gtol": 1e-3}
    )
    return time.process_time() - begun, end.nfev, end.x


def points() -> Iterator[str]:
    """Fixed points from nothing, fits and pairs."""
    yield "| rows | pattern | fixed point | fit (evaluations) | pairs | deviations |"
    yield "| --- | --- | --- | --- | --- | --- |"
    cases = [
        ("10⁵, nested 20 000 in 1000", 100_000, 20_000, 1000, True),
        ("10⁵, crossed 5000 × 200", 100_000, 5000, 200, False),
        ("10⁵, crossed 5000 × 2000", 100_000, 5000, 2000, False),
    ]
    for words, n, one, two, nested in cases:
        yield _point(words, n, (one, two), nested)


def peers() -> Iterator[str]:
    """Fits of `EffectsModel` to the mode, and of GPBoost, iteratively and by Cholesky factors."""
    yield "| 10⁵ rows | EffectsModel | GPBoost | GPBoost, Cholesky | deviations |"
    yield "| --- | --- | --- | --- | --- |"
    cases = [("nested 20 000 in 1000", 20_000, 1000, True)]
    cases += [(f"crossed 5000 × {b}", 5000, b, False) for b in (200, 2000)]
    for words, one, two, nested in cases:
        A, y = groups(100_000, one, two, nested)
        codes = A.indices.reshape(-1, 5)[:, 3:] - 3 - np.array([0, one])
        X = A[:, :3].toarray()
        data = {"a": X[:, 1], "b": X[:, 2], "one": codes[:, 0], "two": codes[:, 1]}
        terms = [Fixed("a", "b"), Groups("one"), Groups("two")]
        model = EffectsModel(terms, "probit", integrate="mode", correction=None)
        model.fit(data, y)
        cells = [f"{best(partial(model.fit, data, y), 2):.2f}"]
        sds = [np.exp(model.theta_)]
        for options in ({}, {"matrix_inversion_method": "cholesky"}):
            if not find_spec("gpboost"):
                cells.append("–")
                continue
            import gpboost as gpb

            own = gpb.GPModel(
                group_data=codes, likelihood="bernoulli_probit", num_parallel_threads=1, **options
            )
            begun = time.process_time()
            own.fit(y=(y > 0.0).astype(float), X=X)
            cells.append(f"{time.process_time() - begun:.2f}")
            sds.append(np.sqrt(np.ravel(np.asarray(own.get_cov_pars()))[:2]))
        found = "; ".join("{:.3f}, {:.3f}".format(*pair) for pair in sds)
        yield f"| {words} | {' | '.join(cells)} | {found} |"


def _point(words: str, n: int, sizes: tuple[int, int], nested: bool) -> str:
    A, y = groups(n, *sizes, nested)
    Q = precision(sizes, (0.0, 0.0))
    made = best(lambda: Pattern(A, Q), 1)
    pattern = Pattern(A, Q)
    infer_precision(A, Q, y, "probit", pattern=pattern).corrected_evidence()
    one = best(lambda: infer_precision(A, Q, y, "probit", pattern=pattern))
    posts = [infer_precision(A, Q, y, "probit", pattern=pattern) for _ in range(3)]
    paired = [best(post.corrected_evidence, 1) for post in posts]
    del posts
    seconds, evaluations, theta = fitted(A, y, sizes, pattern)
    sds = ", ".join(f"{value:.3f}" for value in np.exp(theta))
    fit = f"{seconds:.2f} ({evaluations})"
    return f"| {words} | {made:.2f} | {one:.2f} | {fit} | {min(paired):.2f} | {sds} |"


def million() -> Iterator[str]:
    """A million rows: seconds, and bytes a row."""
    small, labels = groups(100_000, 20_000, 1000, True)
    infer_precision(small, precision((20_000, 1000), (0.0, 0.0)), labels, "probit")
    del small, labels
    sizes, n = (200_000, 10_000), 1_000_000
    A, y = groups(n, *sizes, True)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    Q = precision(sizes, (0.0, 0.0))
    begun = time.process_time()
    post = infer_precision(A, Q, y, "probit")
    first = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    given = (A.data.nbytes + A.indices.nbytes + A.indptr.nbytes + y.nbytes) / n
    yield f"without a pattern: {first:.2f} s; {(peak - before) / n:.0f} bytes a row at most, beside"
    yield f"{given:.0f} of A and y; {post.n_sweeps} sweeps"
    del post
    yield "| rows | pattern | fixed point | fit (evaluations) | pairs | deviations |"
    yield "| --- | --- | --- | --- | --- | --- |"
    yield _point("10⁶, nested 200 000 in 10 000", n, sizes, True)


def evidence() -> Iterator[str]:
    """Errors of the log evidence of 30 clusters: rows, rows with pairs, equal rows as one site."""
    yield "| rows a cluster, deviation | exact | rows | rows and pairs | collapsed |"
    yield "| --- | --- | --- | --- | --- |"
    f = np.linspace(-12.0, 12.0, 6001)
    prior = np.exp(-0.5 * f * f) / np.sqrt(2.0 * np.pi) * (f[1] - f[0])
    for m in (4, 10):
        for sd in (1.0, 2.0, 4.0):
            rng = np.random.default_rng(0)
            codes = np.repeat(np.arange(30), m)
            eta = sd * rng.standard_normal(30)[codes] + rng.standard_normal(codes.size)
            y = np.where(eta > 0.3, 1.0, -1.0)
            logs = log_ndtr(y.reshape(30, m, 1) * sd * f).sum(axis=1)
            exact = float(np.log((np.exp(logs) * prior).sum(axis=1)).sum())
            A, Q = levels(codes, 30), sparse.eye_array(30) / sd**2
            rows = infer_precision(A, Q, y, "probit", collapse=False, tol=1e-9)
            one = infer_precision(A, Q, y, "probit", tol=1e-9)
            found = (rows.log_evidence, rows.corrected_evidence().value, one.log_evidence)
            errors = " | ".join(f"{value - exact:+.4f}" for value in found)
            yield f"| {m}, {sd:g} | {exact:.3f} | {errors} |"


CASES = {
    "factors": factors,
    "points": points,
    "peers": peers,
    "million": million,
    "evidence": evidence,
}

OPTIONS = {"models": {"choices": tuple(CASES), "default": tuple(CASES)}}


def main(options: Namespace) -> None:
    """Print the tables that were asked for."""
    for name in options.models:
        print(f"\n{name}\n", flush=True)
        for line in CASES[name]():
            print(line, flush=True)
