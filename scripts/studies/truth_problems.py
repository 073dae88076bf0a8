"""Problems of the study of posteriors: covariance, observations and likelihood of each by name.

`PROBLEMS` maps names to functions without arguments; those of data sets take the directory of the
raw files. Observations are drawn from the model itself at a latent function of its prior, or set by
hand where that is the point: labels of one kind, separable labels, outliers. Everything is seeded.
"""

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from qpruntime import GPClassifier, GPPoissonRegressor, likelihoods
from scripts.benchmarks.data.paper import load

Array = NDArray[np.float64]

#: Rows of a data set at most, drawn at random.
ROWS = 150


class Problem(NamedTuple):
    """What is inferred: x (N, d), covariance (N, N), observations as the likelihood takes them."""

    name: str
    likelihood: str
    x: Array
    K: Array
    y: Array
    mean: float
    about: dict[str, Any]


def layout(kind: str, n: int, rng: np.random.Generator) -> Array:
    """Inputs (N, d): even or clustered on [0, 6], or uniform in a square of side 3."""
    if kind == "clustered":
        x = np.concatenate([c + 0.25 * rng.standard_normal(n // 4) for c in (0.5, 2.0, 4.0, 5.5)])
        return np.sort(np.concatenate([x, rng.uniform(0.0, 6.0, n - x.size)]))[:, None]
    if kind == "plane":
        return 3.0 * rng.random((n, 2))
    return np.linspace(0.0, 6.0, n)[:, None]


def covariance(x: Array, kernel: str, v: float, length: float, nugget: float) -> Array:
    """Squared exponential, or Matern 1/2 or 3/2; the nugget is a part of the variance."""
    if kernel == "rbf":
        K = RBF(length)(x)
    else:
        K = Matern(length, nu={"rough": 0.5, "matern32": 1.5}[kernel])(x)
    return v * (K + nugget * np.eye(len(x)))


def draw(likelihood: str, f: Array, rng: np.random.Generator) -> Array:
    """Observations of the latent values `f`."""
    name = likelihood.split("(")[0]
    parameters = likelihoods.get(likelihood).parameters
    if name == "probit":
        return np.where(rng.random(f.size) < ndtr(f), 1.0, -1.0)
    if name == "logistic":
        return np.where(rng.random(f.size) < expit(f), 1.0, -1.0)
    if name == "heaviside":
        return np.where(f > 0.0, 1.0, -1.0)
    if name == "poisson":
        return rng.poisson(f * f).astype(float)
    if name == "poisson-exp":
        return rng.poisson(np.exp(np.minimum(f, 8.0))).astype(float)
    if name == "student-t":
        return f + parameters["scale"] * rng.standard_t(parameters["nu"], f.size)
    if name == "laplace":
        return f + rng.laplace(0.0, parameters["scale"], f.size)
    if name == "negative-binomial":
        r = parameters["dispersion"]
        return rng.poisson(rng.gamma(r, np.exp(np.minimum(f, 8.0)) / r)).astype(float)
    raise ValueError(likelihood)


def drawn(
    name: str,
    likelihood: str,
    *,
    n: int = 40,
    v: float = 1.0,
    length: float = 1.0,
    mean: float = 0.0,
    kernel: str = "rbf",
    nugget: float = 1e-6,
    at: str = "even",
    trials: int = 0,
    make: Callable[[Array, Array, np.random.Generator], Array] | None = None,
) -> Problem:
    """A problem whose observations are drawn from the model, or made of x and f by `make`."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    x = layout(at, n, rng)
    K = covariance(x, kernel, v, length, nugget)
    values, vectors = np.linalg.eigh(K)
    f = mean + vectors @ (np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(n))
    if make is not None:
        y = make(x[:, 0], f, rng)
    elif trials:
        y = np.column_stack([rng.binomial(trials, expit(f)), np.full(n, trials)]).astype(float)
    else:
        y = draw(likelihood, f, rng)
    about = {"n": n, "v": v, "length": length, "kernel": kernel, "at": at, "nugget": nugget}
    return Problem(name, likelihood, x, K, y, mean, about)


def all_one(x: Array, f: Array, rng: np.random.Generator) -> Array:
    """Labels of one kind."""
    return np.ones(x.size)


def separable(x: Array, f: Array, rng: np.random.Generator) -> Array:
    """Labels that a smooth function separates without doubt."""
    return np.where((x > 1.5) & (x < 4.0), 1.0, -1.0)


def noisy(x: Array, f: Array, rng: np.random.Generator) -> Array:
    """Labels of a sine and of noise."""
    return np.where(np.sin(2.0 * x) + 0.4 * rng.standard_normal(x.size) > 0.0, 1.0, -1.0)


def outliers(x: Array, f: Array, rng: np.random.Generator) -> Array:
    """A sine observed with noise of 0.1; every eighth point is 3 off."""
    y = np.sin(2.0 * x) + 0.1 * rng.standard_normal(x.size)
    y[::8] += 3.0 * rng.choice([-1.0, 1.0], y[::8].size)
    return y


def torn(x: Array, f: Array, rng: np.random.Generator) -> Array:
    """Two sine waves two apart: every point has observations that contradict its neighbour's."""
    return (
        np.sin(x) + np.where(np.arange(x.size) % 2, 1.0, -1.0) + 0.1 * rng.standard_normal(x.size)
    )


def few(x: Array, f: Array, rng: np.random.Generator) -> Array:
    """Counts of zero but for one."""
    y = np.zeros(x.size)
    y[x.size // 2] = 1.0
    return y


def from_data(
    data: str, where: Path, factor: tuple[float, float] = (1.0, 1.0), name: str = ""
) -> Problem:
    """Rows of a data set of Table 1, at the maximum of EP's evidence or beside it."""
    X, y = load(data, where)
    rng = np.random.default_rng(zlib.crc32(data.encode()))
    counts = data == "mining"
    if len(y) > ROWS:
        rows = np.sort(rng.permutation(len(y))[:ROWS])
        X, y = X[rows], y[rows]
    start = ConstantKernel(1.0, (1e-6, 1e10)) * RBF(1.0, (1e-4, 1e5))
    if counts:
        fitted = GPPoissonRegressor(start, method="ep", mean=1.0).fit(X, y).kernel_
    else:
        scale = X.std(axis=0)
        X = (X - X.mean(axis=0)) / np.where(scale > 0.0, scale, 1.0)
        fitted = GPClassifier(start, method="ep").fit(X, y).kernel_
    v, length = fitted.k1.constant_value * factor[0], fitted.k2.length_scale * factor[1]
    K = covariance(X, "rbf", v, length, 1e-8)
    about = {"n": len(y), "v": v, "length": length, "kernel": "rbf", "at": "data", "nugget": 1e-8}
    likelihood, mean = ("poisson", 1.0) if counts else ("probit", 0.0)
    return Problem(name, likelihood, X, K, y, mean, about)


_T = "student-t(nu={}, scale={})"
_DRAWN: list[tuple[str, str, dict[str, Any]]] = [
    ("probit v1", "probit", {"v": 1.0}),
    ("probit v25", "probit", {"v": 25.0, "make": noisy}),
    ("probit v25 N100", "probit", {"v": 25.0, "n": 100, "make": noisy}),
    ("probit separable v1000", "probit", {"v": 1000.0, "make": separable}),
    ("probit separable v100", "probit", {"v": 100.0, "make": separable, "length": 0.7}),
    ("probit all one v25", "probit", {"v": 25.0, "make": all_one}),
    ("probit all one v4 N20", "probit", {"v": 4.0, "make": all_one, "n": 20}),
    ("probit rough", "probit", {"v": 9.0, "kernel": "rough", "n": 60}),
    ("probit clustered", "probit", {"v": 16.0, "at": "clustered", "n": 60}),
    ("probit plane", "probit", {"v": 9.0, "at": "plane", "n": 100}),
    ("probit plane N200", "probit", {"v": 4.0, "at": "plane", "n": 200, "kernel": "matern32"}),
    ("probit N20", "probit", {"v": 9.0, "n": 20}),
    ("probit N200", "probit", {"v": 9.0, "n": 200, "length": 0.5}),
    ("logistic v1", "logistic", {"v": 1.0}),
    ("logistic v25", "logistic", {"v": 25.0, "n": 60}),
    ("logistic separable v400", "logistic", {"v": 400.0, "make": separable}),
    ("logistic all one", "logistic", {"v": 16.0, "make": all_one, "n": 30}),
    ("logistic rough", "logistic", {"v": 9.0, "kernel": "rough", "n": 80}),
    ("logistic plane", "logistic", {"v": 16.0, "at": "plane", "n": 120}),
    ("heaviside nugget .3", "heaviside", {"v": 1.0, "nugget": 0.3}),
    ("heaviside nugget .05", "heaviside", {"v": 1.0, "nugget": 0.05, "n": 30}),
    ("heaviside rough", "heaviside", {"v": 1.0, "kernel": "rough", "nugget": 0.1, "n": 60}),
    ("heaviside clustered", "heaviside", {"v": 1.0, "at": "clustered", "nugget": 0.2, "n": 60}),
    ("poisson mean 2.5", "poisson", {"mean": 2.5}),
    ("poisson mean 1.5", "poisson", {"mean": 1.5, "v": 0.5, "n": 60}),
    ("poisson mean 1", "poisson", {"mean": 1.0, "v": 0.3}),
    ("poisson mean 0", "poisson", {"mean": 0.0, "v": 1.0, "n": 30}),
    ("poisson mean 0 few", "poisson", {"mean": 0.0, "v": 0.5, "n": 30, "make": few}),
    ("poisson rough", "poisson", {"mean": 2.0, "v": 0.5, "kernel": "rough", "n": 60}),
    ("poisson-exp rare", "poisson-exp", {"mean": -2.0, "v": 4.0, "length": 0.5, "make": few}),
    ("poisson-exp moderate", "poisson-exp", {"mean": 1.0, "v": 1.0, "n": 60}),
    ("poisson-exp wide", "poisson-exp", {"mean": -1.0, "v": 9.0, "n": 60, "length": 0.7}),
    ("poisson-exp rough", "poisson-exp", {"mean": 0.0, "v": 2.0, "kernel": "rough", "n": 80}),
    ("poisson-exp plane", "poisson-exp", {"mean": -1.0, "v": 2.0, "at": "plane", "n": 150}),
    ("student outliers", _T.format(4, 0.1), {"length": 0.7, "make": outliers}),
    ("student outliers nu2", _T.format(2, 0.1), {"length": 0.7, "make": outliers}),
    ("student drawn", _T.format(4, 0.5), {"n": 60}),
    ("student drawn nu3 rough", _T.format(3, 0.3), {"kernel": "rough", "n": 60}),
    ("student torn", _T.format(4, 0.3), {"make": torn, "length": 1.5}),
    ("student torn narrow", _T.format(3, 0.2), {"make": torn, "length": 0.5, "n": 30}),
    ("student cauchy", _T.format(1, 0.2), {"n": 40}),
    ("laplace drawn", "laplace(scale=0.5)", {"n": 60}),
    ("laplace outliers", "laplace(scale=0.1)", {"length": 0.7, "make": outliers}),
    ("laplace rough", "laplace(scale=0.3)", {"kernel": "rough", "n": 50}),
    ("laplace torn", "laplace(scale=0.5)", {"make": torn, "length": 1.5}),
    ("binomial 5", "binomial", {"trials": 5, "v": 4.0}),
    ("binomial 2 wide", "binomial", {"trials": 2, "v": 25.0, "n": 50}),
    ("binomial 20 rare", "binomial", {"trials": 20, "v": 2.0, "mean": -4.0}),
    ("binomial rough", "binomial", {"trials": 3, "v": 4.0, "kernel": "rough", "n": 60}),
    ("negative-binomial .5", "negative-binomial(dispersion=0.5)", {"v": 2.0, "n": 50}),
    ("negative-binomial 5", "negative-binomial(dispersion=5)", {"v": 1.0, "mean": 1.0}),
    ("negative-binomial rare", "negative-binomial(dispersion=1)", {"v": 4.0, "mean": -3.0}),
    ("negative-binomial rough", "negative-binomial(dispersion=2)", {"kernel": "rough", "n": 60}),
]
DATA = (
    *("wine1", "wine2", "wine3", "glass9", "crabs", "sonar", "ionosphere", "cancer", "pima532"),
    "mining",
)


def problems(where: Path | None) -> dict[str, Callable[[], Problem]]:
    """All problems by name; without a directory those of data sets are left out.

    Likelihoods and data sets take turns, so that a run that is stopped has seen most.
    """
    groups: dict[str, list[tuple[str, Callable[[], Problem]]]] = {}
    for name, likelihood, options in _DRAWN:
        groups.setdefault(likelihood.split("(")[0], []).append(
            (name, partial(drawn, name, likelihood, **options))
        )
    if where is not None:
        sets = [(data, (1.0, 1.0), f"{data} at its optimum") for data in DATA]
        sets += [(data, (0.1, 1.0), f"{data} at a tenth of its variance") for data in DATA]
        groups["data"] = [
            (name, partial(from_data, data, where, factor, name)) for data, factor, name in sets
        ]
    found: dict[str, Callable[[], Problem]] = {}
    while any(groups.values()):
        for name, group in groups.items():
            for _ in range(3 if name == "data" else 1):
                if group:
                    found.update([group.pop(0)])
    return found
