"""Which posterior is right: EP, QP, VB, Laplace and the corrections beside long chains.

Truth is elliptical slice sampling, four chains, until R-hat is below 1.01 and the effective number
of draws what was asked for, or time is up (which the record says); the evidence by bridge sampling.
One JSON line per problem; what is there already is not done again. ``--scheduler ADDRESS`` hands
problems to a dask cluster. The page docs/bench-posterior.md is made of the records:

    python -m scripts.studies truth --data DIRECTORY
"""

import json
import sys
import time
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from threadpoolctl import threadpool_limits

from qpruntime import ConvergenceWarning, Posterior, infer, likelihoods
from qpruntime.errors import QPError, SamplingWarning
from qpruntime.inference.corrections.ep_fixed_point import NormalApproximation, normal_of, signless
from qpruntime.inference.corrections.slice_sampler import (
    Chains,
    log_target,
    mixing,
    root_of,
    run_chains,
)
from qpruntime.inference.corrections.tilted import tilted_moments
from qpruntime.inference.posterior import solution_of
from scripts.cluster import each
from scripts.records import RESULTS, Records
from scripts.studies.methods import Found, corrected, gaussian, laplace, mirrored
from scripts.studies.truth_problems import Problem, problems

Array = NDArray[np.float64]
LEVELS = (0.5, 0.9, 0.99)
#: Problems whose marginals are kept site by site, for the tests.
REFERENCE = (
    *("probit N20", "probit rough", "logistic all one", "heaviside nugget .05", "poisson mean 1"),
    *("poisson-exp wide", "student outliers nu2", "laplace drawn", "binomial 2 wide"),
    *("binomial 20 rare", "negative-binomial .5", "negative-binomial rare"),
)
#: Sites up to which "tilt" is run.
TILTED = 80


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


def sampled(
    problem: Problem, post: Posterior, seconds: float, wanted: float
) -> tuple[Array, dict[str, Any]]:
    """Draws (S, N), of |f| where f and -f are as probable, and what is known of the truth."""
    likelihood = likelihoods.get(problem.likelihood)
    observed = solution_of(post).observed()
    folded = signless(observed)
    normal = post._correcting._normal() if folded else normal_of(observed, post.sites)
    chains, steps = sample(normal, seconds, wanted)
    draws = chains.draws.reshape(-1, len(problem.K))
    _, tilted = tilted_moments(normal.rule, normal.fixed, likelihood)
    if folded:
        found = post._correcting.corrected.found
        aside = np.log(2.0) if found.aside else 0.0
        one_side = np.where(chains.draws @ normal.fixed.mean < 0.0, -1.0, 1.0)[..., None]
        known = found.log_evidence - aside
        evidence, error = bridge(normal, tilted.base, chains.draws * one_side, known)
        evidence, draws = evidence + aside, np.abs(draws)
    else:
        evidence, error = bridge(normal, tilted.base, chains.draws, post.log_evidence)
    encoded = likelihood.validate(problem.y)
    some = draws[:: max(1, len(draws) // 2000)]
    levels = np.array([likelihood.log_prob(f, y) for f, y in zip(some.T, encoded, strict=True)])
    centred = (draws - draws.mean(axis=0)) / draws.std(axis=0)
    kurtosis = (centred**4).mean(axis=0)
    return draws, {
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


def normals(problem: Problem, post: Posterior) -> dict[str, Found]:
    """What methods without corrections say, of |f| where the chains do."""
    methods: dict[str, Found | None] = {
        "ep": gaussian(problem, post.mean, post.variance, post.log_evidence)
    }
    for method in ("qp", "vb"):
        if method == "vb" and likelihoods.get(problem.likelihood).expected is None:
            continue
        try:
            other = infer(problem.K, problem.y, problem.likelihood, method, **_options(problem))
            bound = other.log_evidence if method == "vb" else None
            methods[method] = gaussian(problem, other.mean, other.variance, bound)
        except QPError as failure:
            print(problem.name, method, failure, file=sys.stderr)
    methods["laplace"] = laplace(problem)
    fold = mirrored if signless(solution_of(post).observed()) else lambda found: found
    return {name: fold(found) for name, found in methods.items() if found is not None}


def spoken(post: Posterior, draws: Array) -> dict[str, float]:
    """Spreads of the corrections, and what they predict of the variances beside the draws."""
    said = {
        "spread": float(np.mean(post.marginals().spread)),
        "evidence spread": post.corrected_evidence().spread,
    }
    response = post._correcting.corrected.response
    if response is not None and not signless(solution_of(post).observed()):
        ratio = np.log(response.variance / post.variance)
        gap = np.log(draws.var(axis=0) / post.variance)
        said["predicted"] = float(ratio.mean())
        said["slope"] = float(ratio @ gap / (ratio @ ratio))
        said["correlation"] = float(np.corrcoef(ratio, gap)[0, 1])
    return said


def by_site(problem: Problem, draws: Array) -> dict[str, list[Any]]:
    """Marginals site by site, for the tests."""
    centred = (draws - draws.mean(axis=0)) / draws.std(axis=0)
    found = {
        "mean": draws.mean(axis=0),
        "variance": draws.var(axis=0),
        "skewness": (centred**3).mean(axis=0),
        "q05": np.quantile(draws, 0.05, axis=0),
        "q95": np.quantile(draws, 0.95, axis=0),
    }
    rounded = {word: [float(f"{v:.5g}") for v in values] for word, values in found.items()}
    return {"x": problem.x.round(12).tolist(), "y": np.asarray(problem.y).tolist(), **rounded}


def study(problem: Problem, seconds: float, wanted: float) -> dict[str, Any]:
    """All of one problem as a plain dictionary."""
    started = time.perf_counter()
    post = infer(problem.K, problem.y, problem.likelihood, "ep", tol=1e-8, **_options(problem))
    draws, truth = sampled(problem, post, seconds, wanted)
    methods = normals(problem, post)
    said: dict[str, Any] = {"status": post.status, "fixed_points": len(post.fixed_points)}
    times = {}
    coarse = likelihoods.get(problem.likelihood).name in ("heaviside", "laplace")
    for correction in ("fact", "blend", "tilt"):
        if correction == "tilt" and (len(problem.K) > TILTED or coarse):
            continue
        try:
            begun = time.perf_counter()
            methods[correction] = corrected(post, problem, correction)
            times[correction] = time.perf_counter() - begun
        except QPError as failure:
            said[f"{correction} refused"] = str(failure)
    if "blend" in methods:
        said |= spoken(post, draws)
    record: dict[str, Any] = {
        "name": problem.name,
        "likelihood": problem.likelihood,
        "mean": problem.mean,
        **problem.about,
        "truth": {k: v for k, v in truth.items() if k != "log_probability"},
        "said": said,
        "methods": {name: compare(found, draws, truth) for name, found in methods.items()},
        "seconds": time.perf_counter() - started,
        "seconds of": times,
    }
    if problem.name in REFERENCE:
        record["sites"] = by_site(problem, draws)
    return record


def _options(problem: Problem) -> dict[str, Any]:
    return {"mean": problem.mean, "max_sweeps": 300}


def work(name: str, where: Path | None, seconds: float, wanted: float) -> dict[str, Any]:
    """Study the problem of this name, with one thread."""
    with threadpool_limits(1), warnings.catch_warnings():
        for kind in (ConvergenceWarning, SamplingWarning, RuntimeWarning):
            warnings.simplefilter("ignore", kind)  # the record has what they say
        return study(problems(where)[name](), seconds, wanted)


def write_reference(path: Path, records: Records[Any]) -> None:
    """Write what tests compare with: problems, their marginals site by site, and errors."""
    kept = ("name", "likelihood", "mean", "n", "v", "length", "kernel", "nugget", "sites")
    found = []
    for name in REFERENCE:
        record = records.records[(name,)]
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
    records = Records(options.kept, "name")
    if options.reference:
        write_reference(options.reference, records)
        return
    names = [
        name
        for name in problems(options.data)
        if (name,) not in records
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


# --- Long chains by elliptical slice sampling, and evidence by bridge sampling

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
