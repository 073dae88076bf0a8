"""Random problems far outside what is sensible: every result is finite, or one known exception."""

import re
import warnings

import numpy as np
import pytest

from qpruntime import ConvergenceWarning, NumericalError, infer, likelihoods


def problem(seed):
    """A random Gram matrix, observations and options; nothing about them is gentle."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 61))
    X = rng.standard_normal((n, int(rng.integers(1, 4))))
    if rng.random() < 0.3:
        X[:, 0] = 1.0  # a constant column
    if rng.random() < 0.3:
        X = X[rng.integers(0, n, n)]  # duplicates
    variance = 10.0 ** rng.uniform(-6, 12)
    length = 10.0 ** rng.uniform(-3, 4)
    K = variance * np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1) / length**2)
    name = str(rng.choice(likelihoods.names()))
    if name in ("poisson", "poisson-exp", "negative-binomial"):
        y = rng.poisson(10.0 ** rng.uniform(-1, 4), n).astype(float)
    elif name == "binomial":
        trials = rng.integers(1, 1000, n)
        y = np.column_stack([rng.binomial(trials, rng.random()), trials])
    elif name in ("student-t", "laplace"):
        y = rng.standard_t(2.0, n) * 10.0 ** rng.uniform(-3, 4)
    else:
        y = rng.choice([-1.0, 1.0], n)  # contradictory where points coincide
    options = {
        "likelihood": name,
        "method": str(rng.choice(["ep", "qp"])),
        "order": str(rng.choice(["sequential", "parallel"])),
        "mean": float(rng.choice([0.0, rng.normal() * 10.0 ** rng.uniform(-2, 3)])),
    }
    return K, y, options


def powered(seed):
    """Such a problem with a power, weights, or both; the weights over five decades, some zero."""
    K, y, options = problem(seed)
    rng = np.random.default_rng([seed, 1])
    if rng.random() < 0.6:
        options["power"] = float(10.0 ** rng.uniform(-2, 0))
    if "power" not in options or rng.random() < 0.5:
        weights = 10.0 ** rng.uniform(-3, 2, len(y))
        options["weights"] = np.where(rng.random(len(y)) < 0.2, 0.0, weights)
    return K, y, options


def highest(y, name, weights):
    """Sum of the largest log densities: at f = y for real y; a probability is at most 1."""
    if name not in ("student-t", "laplace"):
        return 0.0
    likelihood = likelihoods.get(name)
    rest, curvature = zip(*[likelihood.split(v, v, likelihood.theta) for v in y], strict=True)
    return float(np.sum(weights * (np.array(rest) - 0.5 * np.array(curvature) * y**2)))


def outcome(seed, made=problem):
    """Run one problem; return what it ended in."""
    K, y, options = made(seed)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        try:
            post = infer(K, y, max_sweeps=30, **options)
        except NumericalError as error:
            return f"{type(error).__name__}: {error}"
    mean, variance = post.predict(K[: len(y)], K.diagonal(), mean=options["mean"])
    for name, value in {
        "mean": post.mean,
        "variance": post.variance,
        "evidence": post.log_evidence,
        "tau": post.sites.tau,
        "nu": post.sites.nu,
        "loo": post.loo(),
        "predicted mean": mean,
        "predicted variance": variance,
    }.items():
        assert np.isfinite(value).all(), f"{name} is not finite: seed {seed}, {options}"
    assert (post.variance > 0.0).all(), f"seed {seed}, {options}"
    if post.converged:
        # No prior makes data likelier than their best f does; EP may err by a little.
        most = highest(y, options["likelihood"], options.get("weights", 1.0))
        assert post.log_evidence <= most + 1e-3 * len(y), f"{most}: seed {seed}, {options}"
    assert np.isfinite(post.evidence_gradient(K))
    return "converged" if post.converged else "unsettled"


def check(seen):
    """Half of all converge, and an exception says what the cause is and what to do."""
    assert 2 * seen.count("converged") > len(seen)
    for text in set(seen) - {"converged", "unsettled"}:
        # The last two: cavities 1e9 deviations out, where |y - f| and e^f round to noise.
        known = "add jitter|WhiteKernel|check outliers|move the cavity|look for noise"
        assert re.search(known, text), text


@pytest.mark.parametrize(
    ("first", "count", "made"),
    [
        (0, 60, problem),
        *(
            pytest.param(first, count, made, marks=pytest.mark.slow)
            for first, count, made in (
                (60, 60, problem),
                *((k, 500, powered) for k in range(10_000, 12_000, 500)),
                *((k, 500, problem) for k in range(10_000, 20_000, 500)),
            )
        ),
    ],
)
def test_random_problems(first, count, made):
    check([outcome(seed, made) for seed in range(first, first + count)])
