"""What certified functions cost a call, by library, and where 20 points of Gauss-Hermite fail.

Costs are the best of many runs over 1000 cavities, nanoseconds a cavity; what is not installed is
left out. Errors are those of log Z, of the tilted deviation and of the bound's slope by 20 points,
against `qpruntime.functions`. Results go to ``tables/results/certified.json``, the picture beside
it; tables on docs/bench-integrals.md are made of them.
"""

import json
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qpruntime import functions, likelihoods
from scripts.benchmarks.timing import has
from scripts.records import RESULTS

ONE_THREAD = True
OPTIONS = {"out": {"type": Path, "default": RESULTS, "help": "folder (default tables/results)"}}
_N, _RUNS, _SECONDS = 1000, 300, 1.0
METHODS = ("log_partition", "moments", "sigma_star", "expected_log_prob")
NAMES = ("probit", "logistic", "poisson-exp", "student-t")
#: Fields of a curve: the likelihood, its observation, and mean of q by its deviation.
CURVES: dict[str, tuple[str, float, Callable[[float], float]]] = {
    "Student-t, ν = 4, scale 1, y = 0, µ = σ/2": ("student-t", 0.0, lambda s: 0.5 * s),
    "logistic, y = 1, µ = −3σ": ("logistic", 1.0, lambda s: -3.0 * s),
    "counts of 100, exp link, µ = 0": ("poisson-exp", 100.0, lambda s: 0.0),
}


def least(call: Callable[[], object]) -> float:
    """Nanoseconds a cavity: the best of some runs that take a second at most."""
    call()
    times: list[float] = []
    until = time.perf_counter() + _SECONDS
    while len(times) < _RUNS and (len(times) < 3 or time.perf_counter() < until):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times) / _N * 1e9


def cavities(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ordinary ones, and observations of the kind."""
    rng = np.random.default_rng(0)
    mu, sigma = rng.standard_normal(_N), np.exp(0.5 * rng.standard_normal(_N))
    y = rng.choice([-1.0, 1.0], _N)
    if name == "poisson-exp":
        y = rng.poisson(np.exp(mu)).astype(float)
    if name == "student-t":
        y = mu + rng.standard_t(4, _N)
    return mu, sigma, y


def compiled(kernel: Any) -> Callable[..., Any]:
    """A loop over cavities that adds up, compiled."""
    import numba

    @numba.njit(error_model="numpy")
    def loop(mu: Any, sigma: Any, y: Any) -> Any:
        total = 0.0
        for i in range(mu.size):
            total += kernel(mu[i], sigma[i], y[i])
        return total

    return loop


def costs() -> list[dict[str, Any]]:
    """A record for every likelihood and method."""
    found = []
    for name in NAMES:
        for method in METHODS:
            found.append(cost(name, method, cavities(name)))
            print(found[-1], flush=True)
    return found


def cost(name: str, method: str, arrays: tuple[np.ndarray, ...]) -> dict[str, Any]:
    """Nanoseconds of one method by every library there is."""
    own = functions(name)
    call = getattr(own, method)
    record: dict[str, Any] = {"likelihood": name, "method": method}
    record["arrays"] = least(lambda: call(*arrays))
    record["derivatives"] = least(lambda: call(*arrays, derivatives=True))
    if method != "moments":
        loop = compiled(own.kernel(method))
        record["numba"] = least(lambda: loop(*arrays))
    if method != "sigma_star" or own.table is not None:
        record |= elsewhere(name, method, arrays)
    return record


def elsewhere(name: str, method: str, arrays: tuple[np.ndarray, ...]) -> dict[str, float]:
    """Values and gradients in mu by JAX and by PyTorch, in double precision."""
    record = {}
    if has("jax"):
        import jax

        from qpruntime.jax import functions as on_jax

        with jax.enable_x64(True):
            call = getattr(on_jax(name), method)
            given = tuple(jax.numpy.asarray(a) for a in arrays)
            value = jax.jit(lambda *a: _one(call(*a)))
            slope = jax.jit(jax.grad(lambda *a: _one(call(*a)).sum()))
            record["jax"] = least(lambda: value(*given).block_until_ready())
            record["jax_gradient"] = least(lambda: slope(*given).block_until_ready())
    if has("torch"):
        import torch

        from qpruntime.torch import functions as on_torch

        torch.set_num_threads(1)
        call = getattr(on_torch(name), method)
        tensors = [torch.tensor(a) for a in arrays]
        mu = tensors[0].clone().requires_grad_()
        record["torch"] = least(lambda: _one(call(*tensors)))
        record["torch_gradient"] = least(
            lambda: torch.autograd.grad(_one(call(mu, *tensors[1:])).sum(), mu)
        )
    return record


def _one(found: Any) -> Any:
    """The mean of moments, or what there is."""
    return found[0] if isinstance(found, tuple) else found


def twenty_points(name: str, y: float, mu: float, sigma: float) -> tuple[float, float, float]:
    """Log Z, tilted deviation and slope of E log p by points that move with mu."""
    x, w = np.polynomial.hermite_e.hermegauss(20)
    w = w / w.sum()
    own, h = likelihoods.get(name), 1e-6 * sigma
    f = mu + sigma * x
    e = np.log(w) + own.log_prob(f, y)
    p = np.exp(e - e.max())
    log_z = float(e.max() + np.log(p.sum()))
    p /= p.sum()
    slopes = (own.log_prob(f + h, y) - own.log_prob(f - h, y)) / (2.0 * h)
    return log_z, float(sigma * np.sqrt(p @ (x - p @ x) ** 2)), float(w @ slopes)


def failures() -> list[dict[str, Any]]:
    """Errors of 20 points along the deviation of q, a record for every curve and deviation."""
    found = []
    for title, (name, y, mean) in CURVES.items():
        own = functions(name)
        for sigma in np.round(10.0 ** np.linspace(-1.0, 1.5, 26), 6).tolist():
            mu = mean(sigma)
            rough = twenty_points(name, y, mu, sigma)
            log_z = float(own.log_partition(mu, sigma, y))
            std = float(own.moments(mu, sigma, y).std)
            slope = float(own.expected_log_prob(mu, sigma, y, derivatives=True).d_mu)
            record = {"curve": title, "likelihood": name, "y": y, "mu": mu, "sigma": sigma}
            record["log_z"] = rough[0] - log_z
            record["std"] = rough[1] / std
            record["slope"] = rough[2] / slope - 1.0 if slope else 0.0
            found.append(record)
    return found


def main(options: Namespace) -> None:
    """Measure and keep."""
    document = {"costs": costs(), "failures": failures()}
    (options.out / "certified.json").write_text(json.dumps(document, indent=1) + "\n")
