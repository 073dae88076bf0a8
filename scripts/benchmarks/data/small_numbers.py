"""Small raw sets of numbers and of counts, numbered after those of classes."""

from functools import partial

import numpy as np
from sklearn import datasets as own

from scripts.benchmarks.data import paper
from scripts.benchmarks.data.small_classes import Made, seeded, small

small("numbers", "diabetes")(partial(own.load_diabetes, return_X_y=True, scaled=False))


@small("numbers", "iris_petal")
def _iris_petal() -> Made:
    X = own.load_iris().data
    return X[:, [0, 1, 2]], X[:, 3]


@small("numbers", "wine_alcohol")
def _wine_alcohol() -> Made:
    X = own.load_wine().data
    return X[:, 1:], X[:, 0]


@small("numbers", "cancer_symmetry")
def _cancer_symmetry() -> Made:
    X = own.load_breast_cancer().data
    return np.delete(X, 8, axis=1), X[:, 8]


@small("numbers", {"friedman1": (1,), "friedman2": (2,), "friedman3": (3, 1e5)})
def _friedman(which: int, scale: float = 1.0) -> Made:
    make = (own.make_friedman1, own.make_friedman2, own.make_friedman3)[which - 1]
    X, y = make(300, noise=(1.0, 60.0, 0.1)[which - 1], random_state=which)
    return X, scale * y


@small("numbers", {"sine_6000": (False,), "sine_outliers": (True,)})
def _sine(outliers: bool) -> Made:
    rng = seeded(f"sine{outliers}")
    t = np.sort(rng.uniform(0.0, 6000.0, 300))
    y = 1e3 * (np.sin(t / 300.0) + 0.2 * rng.standard_normal(300))
    if outliers:
        hit = rng.random(300) < 0.08
        y[hit] += 2e4 * rng.standard_normal(hit.sum())
    return t[:, None], y


@small("numbers", "plane_outliers")
def _outlying_plane() -> Made:
    rng = seeded("plane")
    X = rng.normal(1e4, 10.0, (300, 6))
    y = (X - 1e4) @ [1.0, -1.0, 0.5, 0.0, 0.0, 0.0] + rng.standard_t(2.0, 300)
    return X, y


@small("numbers", "wide_line")
def _wide_line() -> Made:
    return own.make_regression(250, 40, n_informative=8, noise=20.0, random_state=10)


@small("numbers", "mixed_numbers")
def _mixed_numbers() -> Made:
    X, y = own.make_friedman1(300, n_features=13, noise=1.0, random_state=11)
    return X * 10.0 ** np.arange(-6, 7), 1e-4 * y


@small("numbers", "steps")
def _steps() -> Made:
    rng = seeded("steps")
    X = rng.uniform(0.0, 1e-3, (250, 2))
    return X, np.floor(4e3 * X[:, 0]) + 0.3 * rng.standard_normal(250)


@small("counts", "season_6000")
def _season() -> Made:
    rng = seeded("season")
    t = np.sort(rng.uniform(0.0, 6000.0, 300))
    return t[:, None], rng.poisson(6.0 * np.exp(np.sin(t / 300.0)))


@small("counts", "towns")
def _towns() -> Made:
    rng = seeded("towns")
    X = rng.standard_normal((300, 4)) * [1.0, 1e3, 1e-3, 50.0] + [0.0, 1e4, 0.0, 0.0]
    people = rng.lognormal(9.0, 1.0, 300)
    log_rate = -7.0 + 0.5 * X[:, 0] - 0.4 * (X[:, 1] / 1e3 - 10.0) + 0.3 * np.cos(X[:, 3] / 25.0)
    return X, rng.poisson(people * np.exp(log_rate)), people


@small("counts", "rare")
def _rare() -> Made:
    rng = seeded("rare")
    X = rng.uniform(0.0, 100.0, (400, 10))
    return X, rng.poisson(0.4 * np.exp(0.02 * (X[:, 0] - 50.0) - 0.01 * (X[:, 1] - 50.0)))


@small("counts", "hours")
def _hours() -> Made:
    rng = seeded("hours")
    X, hours = rng.uniform(0.0, 1.0, (250, 2)), rng.uniform(0.1, 40.0, 250)
    rate = 3.0 * np.exp(-((X[:, 0] - 0.4) ** 2 + (X[:, 1] - 0.6) ** 2) / 0.05) + 0.2
    return 1e-2 * X, rng.poisson(rate * hours), hours


@small("counts", "large_counts")
def _large_counts() -> Made:
    rng = seeded("large")
    X = rng.uniform(0.0, 10.0, (200, 3)) * [1.0, 1e4, 1e-4]
    return X, rng.poisson(200.0 + 50.0 * X[:, 0] + 100.0 * np.sin(X[:, 1] / 2e4))


@small("counts", "bumps")
def _bumps() -> Made:
    rng = seeded("bumps")
    t = np.arange(200.0) + 1800.0
    rate = 1.0 + 12.0 * np.exp(-0.5 * ((t - 1850.0) / 8.0) ** 2) + 4.0 * (t > 1930.0)
    return t[:, None], rng.poisson(rate)


small("counts", "mining")(partial(paper.load, "mining"))
