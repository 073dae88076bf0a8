"""Which posterior is right: EP, QP, VB, Laplace and the corrections beside long chains.

Truth is elliptical slice sampling, four chains, until R-hat is below 1.01 and the effective number
of draws what was asked for, or time is up (which the record says); the evidence by bridge sampling.
One JSON line per problem; what is there already is not done again. ``--scheduler ADDRESS`` hands
problems to a dask cluster. The page docs/which-posterior.md is made of the records:

    python -m scripts.studies truth --data DIRECTORY
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtri
from threadpoolctl import threadpool_limits

from qpruntime import ConvergenceWarning, Likelihood, Posterior, infer, likelihoods
from qpruntime.errors import QPError, SamplingWarning
from qpruntime.inference.corrections.fixed_point import Normal, normal_of
from qpruntime.inference.corrections.fold import fold, signless
from qpruntime.inference.corrections.grid import moments, normalised, quantile_many
from qpruntime.inference.corrections.sites import tilted_moments
from qpruntime.inference.corrections.slice_sampler import (
    Chains,
    log_target,
    mixing,
    root_of,
    run_chains,
)
from qpruntime.projection.projector import project_arrays
from scripts.cluster import each
from scripts.records import RESULTS, Records
from scripts.studies.truth_problems import Problem, problems

Array = NDArray[np.float64]

LEVELS = (0.5, 0.9, 0.99)
#: Draws of every chain that are kept, and steps of the pilot run.
KEPT, PILOT = 5000, 10_000
#: Problems whose marginals are kept site by site, for the tests.
REFERENCE = (
    "probit N20",
    "probit rough",
    "logistic all one",
    "heaviside nugget .05",
    "poisson mean 1",
    "poisson-exp wide",
    "student outliers nu2",
    "laplace drawn",
    "binomial 2 wide",
    "binomial 20 rare",
    "negative-binomial .5",
    "negative-binomial rare",
)
#: Sites up to which "tilt" is run.
TILTED = 80


class Key(NamedTuple):
    """What identifies a record."""

    name: str


class Found(NamedTuple):
    """Marginals of a method: moments (N,), and quantiles of levels (N, Q)."""

    mean: Array
    variance: Array
    quantile: Callable[[Any], Array]
    log_probability: Array
    log_evidence: float | None


def sample(normal: Normal, seconds: float, wanted: float) -> tuple[Chains, int]:
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


def bridge(normal: Normal, base: Array, draws: Array, log_evidence: float) -> tuple[float, float]:
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


def slopes(likelihood: Likelihood, f: Array, y: Array) -> tuple[Array, Array, Array]:
    """Log density, its slope and minus its second derivative, by differences."""
    h = 1e-4 * (1.0 + np.abs(f))
    up, at, down = (likelihood.log_prob(f + d, y) for d in (h, 0.0, -h))
    return at, (up - down) / (2.0 * h), -(up - 2.0 * at + down) / h**2


def laplace(problem: Problem) -> Found | None:
    """Laplace's approximation (Rasmussen & Williams, 3.12 to 3.32); None where it has none."""
    likelihood = likelihoods.get(problem.likelihood)
    if likelihood.name in ("heaviside", "laplace"):
        return None
    y = likelihood.validate(problem.y)
    K, n = problem.K, len(problem.K)
    a = np.zeros(n)
    f = problem.mean + K @ a
    value = likelihood.log_prob(f, y).sum()
    for _ in range(200):
        _, slope, W = slopes(likelihood, f, y)
        W = np.maximum(W, 0.0)
        target = np.linalg.solve(np.eye(n) + W[:, None] * K, W * (f - problem.mean) + slope)
        step, before = 1.0, value
        for _ in range(60):
            trial = a + step * (target - a)
            g = problem.mean + K @ trial
            value = likelihood.log_prob(g, y).sum() - 0.5 * trial @ K @ trial
            if value >= before - 1e-12:
                break
            step *= 0.5
        a, f = trial, g
        if abs(value - before) < 1e-10:
            break
    _, _, W = slopes(likelihood, f, y)
    B = np.eye(n) + W[:, None] * K
    sign, log_det = np.linalg.slogdet(B)
    variance = np.linalg.solve(B.T, K).diagonal()
    if sign <= 0 or not (variance > 0.0).all():
        return None
    return gaussian(problem, f, variance, float(value - 0.5 * log_det))


def mirrored(found: Found) -> Found:
    """Of |f|, where a method has normals of f."""
    reach = np.linspace(-9.0, 9.0, 2001)
    std = np.sqrt(found.variance)
    logs = np.tile(-0.5 * reach**2, (std.size, 1))
    both = fold(normalised(found.mean[:, None] + std[:, None] * reach, logs))
    mean, variance, _ = moments(both)

    def quantile(p: Any) -> Array:
        out = np.empty((mean.size, len(p)))
        quantile_many(*both[:3], np.asarray(p), out)
        return out

    return Found(mean, variance, quantile, found.log_probability, found.log_evidence)


def gaussian(problem: Problem, mean: Array, variance: Array, evidence: float | None) -> Found:
    """Normal marginals, and the log density they predict for the observations made again."""
    log_z = project_arrays(problem.likelihood, mean, np.sqrt(variance), problem.y, "ep").log_z

    def quantile(p: Any) -> Array:
        return mean[:, None] + np.sqrt(variance)[:, None] * ndtri(np.asarray(p))

    return Found(mean, variance, quantile, log_z, evidence)


def corrected(post: Posterior, problem: Problem, correction: str) -> Found:
    """Marginals of a correction."""
    found = post.marginals(correction=correction)  # type: ignore[arg-type]
    evidence = post.corrected_evidence().value
    return Found(
        found.mean, found.variance, found.quantile, found.log_probability(problem.y), evidence
    )


def compare(found: Found, draws: Array, truth: dict[str, Any]) -> dict[str, float | None]:
    """How far a method is from the draws (S, N)."""
    mean, std = draws.mean(axis=0), draws.std(axis=0)
    ratio = np.log(found.variance / std**2)
    levels = np.quantile(draws, [0.05, 0.95], axis=0).T
    out: dict[str, float | None] = {
        "mean": rms((found.mean - mean) / std),
        "log_variance": float(ratio.mean()),
        "log_variance_abs": float(np.abs(ratio).mean()),
        "log_variance_worst": float(np.abs(ratio).max()),
        "quantiles": rms((found.quantile([0.05, 0.95]) - levels) / std[:, None]),
        "log_probability": rms(found.log_probability - truth["log_probability"]),
        "evidence": None,
    }
    for level in LEVELS:
        ends = found.quantile([0.5 - 0.5 * level, 0.5 + 0.5 * level])
        inside = (draws > ends[:, 0]) & (draws < ends[:, 1])
        out[f"coverage {level}"] = float(inside.mean())
    if found.log_evidence is not None and truth["log_evidence"] is not None:
        out["evidence"] = found.log_evidence - truth["log_evidence"]
    return out


def rms(values: Array) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(values**2)))


def study(problem: Problem, seconds: float, wanted: float) -> dict[str, Any]:
    """All of one problem as a plain dictionary."""
    started = time.perf_counter()
    likelihood = likelihoods.get(problem.likelihood)
    options = {"mean": problem.mean, "max_sweeps": 300}
    K, y = problem.K, problem.y
    post = infer(K, y, problem.likelihood, "ep", tol=1e-8, **options)
    assert post.observed is not None
    folded = signless(post.observed)
    normal = post._normal() if folded else normal_of(post.observed, post.sites)
    chains, steps = sample(normal, seconds, wanted)
    draws = chains.draws.reshape(-1, len(K))
    if folded:  # f and -f are as probable
        draws = draws * np.random.default_rng(4).choice([-1.0, 1.0], (len(draws), 1))
    _, tilted = tilted_moments(normal.rule, normal.fixed, likelihood)
    if folded:
        found = post._corrected.found
        known = found.log_evidence - (np.log(2.0) if found.aside else 0.0)
        one_side = np.where(chains.draws @ normal.fixed.mean < 0.0, -1.0, 1.0)
        evidence, error = bridge(normal, tilted.base, chains.draws * one_side[..., None], known)
        evidence += np.log(2.0) if found.aside else 0.0
    else:
        evidence, error = bridge(normal, tilted.base, chains.draws, post.log_evidence)
    draws = np.abs(draws) if folded else draws
    encoded = likelihood.validate(y)
    some = draws[:: max(1, len(draws) // 2000)]
    levels = np.array([likelihood.log_prob(some[:, j], encoded[j]) for j in range(len(K))])
    centred = (draws - draws.mean(axis=0)) / draws.std(axis=0)
    kurtosis = (centred**4).mean(axis=0)
    truth: dict[str, Any] = {
        "rhat": float(chains.rhat.max()),
        "effective": float(chains.effective.min()),
        "steps": steps,
        "error mean": rms(chains.effective**-0.5),
        "error log_variance": rms(np.sqrt((kurtosis - 1.0) / chains.effective)),
        "error quantiles": rms(np.sqrt(0.0475 / chains.effective) / 0.103),
        "log_evidence": evidence,
        "error evidence": error,
        "skewness": rms((centred**3).mean(axis=0)),
        "log_probability": logsumexp(levels, axis=1) - np.log(len(some)),
    }
    methods: dict[str, Found | None] = {
        "ep": gaussian(problem, post.mean, post.variance, post.log_evidence)
    }
    times = {}
    for method in ("qp", "vb"):
        methods[method] = None
        if method == "vb" and likelihood.expected is None:
            continue
        try:
            other = infer(K, y, problem.likelihood, method, **options)  # type: ignore[arg-type]
            bound = other.log_evidence if method == "vb" else None
            methods[method] = gaussian(problem, other.mean, other.variance, bound)
        except QPError as failure:
            print(problem.name, method, failure, file=sys.stderr)
    methods["laplace"] = laplace(problem)
    if folded:
        methods = {name: found and mirrored(found) for name, found in methods.items()}
    said: dict[str, Any] = {"status": post.status, "fixed_points": len(post.fixed_points)}
    for correction in ("fact", "blend", "tilt"):
        methods[correction] = None
        if correction == "tilt" and (
            len(K) > TILTED or likelihood.name in ("heaviside", "laplace")
        ):
            continue
        try:
            begun = time.perf_counter()
            methods[correction] = corrected(post, problem, correction)
            times[correction] = time.perf_counter() - begun
        except QPError as failure:
            said[f"{correction} refused"] = str(failure)
    if methods["blend"] is not None:
        marginals = post.marginals()
        said["spread"] = float(np.mean(marginals.spread))
        said["evidence spread"] = post.corrected_evidence().spread
        if post._corrected.response is not None and not folded:
            ratio = np.log(post._corrected.response.variance / post.variance)
            gap = np.log(draws.var(axis=0) / post.variance)
            said["predicted"] = float(ratio.mean())
            said["slope"] = float(ratio @ gap / (ratio @ ratio))
            said["correlation"] = float(np.corrcoef(ratio, gap)[0, 1])
    record: dict[str, Any] = {
        "name": problem.name,
        "likelihood": problem.likelihood,
        "mean": problem.mean,
        **problem.about,
        "truth": {k: v for k, v in truth.items() if k != "log_probability"},
        "said": said,
        "methods": {name: compare(found, draws, truth) for name, found in methods.items() if found},
        "seconds": time.perf_counter() - started,
        "seconds of": times,
    }
    if problem.name in REFERENCE:
        record["sites"] = {
            "x": problem.x.round(12).tolist(),
            "y": np.asarray(y).tolist(),
            **{
                word: [float(f"{v:.5g}") for v in values]
                for word, values in {
                    "mean": draws.mean(axis=0),
                    "variance": draws.var(axis=0),
                    "skewness": (centred**3).mean(axis=0),
                    "q05": np.quantile(draws, 0.05, axis=0),
                    "q95": np.quantile(draws, 0.95, axis=0),
                }.items()
            },
        }
    return record


def work(arguments: tuple[str, Path | None, float, float]) -> dict[str, Any]:
    """Study the problem of this name, with one thread."""
    name, where, seconds, wanted = arguments
    with threadpool_limits(1), warnings.catch_warnings():
        for kind in (ConvergenceWarning, SamplingWarning, RuntimeWarning):
            warnings.simplefilter("ignore", kind)  # the record has what they say
        return study(problems(where)[name](), seconds, wanted)


def write_reference(path: Path, records: Records[Key]) -> None:
    """Write what tests compare with: problems, their marginals site by site, and errors."""
    kept = ("name", "likelihood", "mean", "n", "v", "length", "kernel", "nugget", "sites")
    found = []
    for name in REFERENCE:
        record = records.records[Key(name)]
        found.append({k: record[k] for k in kept} | {"truth": record["truth"]})
    path.write_text(json.dumps(found, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")


OPTIONS = {
    "data": {},
    "kept": {"default": RESULTS / "truth.jsonl"},
    "sets": {"default": [], "help": "names of problems, or parts of them"},
    "seconds": {"default": 30.0},
    "wanted": {"type": float, "default": 20_000.0, "help": "effective draws"},
    "scheduler": {},
    "timeout": {},
    "reference": {"type": Path, "help": "write marginals for the tests there, only"},
}


def main(options: Namespace) -> None:
    """Run what is missing."""
    records = Records(options.kept, Key)
    if options.reference:
        write_reference(options.reference, records)
        return
    names = [
        name
        for name in problems(options.data)
        if Key(name) not in records
        and (not options.sets or any(part in name for part in options.sets))
    ]
    calls = [(name, options.data, options.seconds, options.wanted) for name in names]

    def take(record: dict[str, Any]) -> None:
        records.add(record)
        print(
            f"{record['name']}: {record['seconds']:.0f} s, R-hat {record['truth']['rhat']:.3f}, "
            + ", ".join(f"{k} {v['log_variance']:+.3f}" for k, v in record["methods"].items()),
            flush=True,
        )

    each(work, calls, take, options)
