"""Long chains of a posterior by elliptical slice sampling, and its evidence by bridge sampling."""

import time

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from qpruntime.inference.corrections.ep_fixed_point import NormalApproximation, signless
from qpruntime.inference.corrections.slice_sampler import (
    Chains,
    log_target,
    mixing,
    root_of,
    run_chains,
)

Array = NDArray[np.float64]
#: Draws of every chain that are kept, and steps of the pilot run.
KEPT, PILOT = 5000, 10_000


def sample(normal: NormalApproximation, seconds: float, wanted: float) -> tuple[Chains, int]:
    """Chains of the length that a pilot run says is needed, or that time allows."""
    prior, K = normal.observed.prior, normal.observed.K
    assert K is not None
    folded = signless(normal.observed)

    def run(steps: int, seed: int) -> Chains:
        rng = np.random.default_rng(seed)
        chains = run_chains(
            normal.rule, normal.fixed, (normal.V, K), prior, rng, steps=steps, kept=KEPT
        )
        return Chains(chains.draws, *mixing(np.abs(chains.draws))) if folded else chains

    run(1000, 0)  # compiles
    start = time.perf_counter()
    pilot = run(PILOT, 1)
    each = (time.perf_counter() - start) / (1.1 * PILOT)
    steps = PILOT * wanted / max(float(np.median(pilot.effective)), 20.0)
    steps = int(1000 * np.ceil(np.clip(steps, 2 * PILOT, seconds / each) / 1000))
    return run(steps, 2), steps


def bridge(
    normal: NormalApproximation, base: Array, draws: Array, log_evidence: float
) -> tuple[float, float]:
    """Log evidence by bridge sampling between EP's normal and the posterior, and its error.

    Meng & Wong (1996); the error is that of twenty pieces of the chains.
    """
    rng = np.random.default_rng(3)
    flat = draws.reshape(-1, draws.shape[-1])
    flat = flat[:: max(1, len(flat) // 8000)]
    noise = rng.standard_normal(flat.shape)
    others = normal.fixed.mean + noise @ root_of(normal.V).T
    weights = [
        np.array([log_target(normal.rule, normal.fixed, f, False) for f in some]) - base.sum()
        for some in (flat, others)
    ]

    def solve(from_posterior: Array, from_normal: Array) -> float:
        share = np.log(from_posterior.size / (from_posterior.size + from_normal.size))
        rest = np.log(from_normal.size / (from_posterior.size + from_normal.size))
        value = 0.0
        for _ in range(200):
            top = logsumexp(from_normal - np.logaddexp(share + from_normal, rest + value))
            bottom = logsumexp(-np.logaddexp(share + from_posterior, rest + value))
            new = top - np.log(from_normal.size) - bottom + np.log(from_posterior.size)
            done = abs(new - value) < 1e-10
            value = new
            if done:
                break
        return float(value)

    pieces = [
        solve(one, two)
        for one, two in zip(
            np.array_split(weights[0], 20), np.array_split(weights[1], 20), strict=True
        )
    ]
    return log_evidence + solve(*weights), float(np.std(pieces, ddof=1) / np.sqrt(20.0))
