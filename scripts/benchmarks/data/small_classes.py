"""Small raw sets of classes: scikit-learn's own, and drawn ones in units that nobody scaled."""

import zlib
from functools import partial

import numpy as np
from sklearn import datasets as own
from sklearn.utils import resample

from scripts.benchmarks.data import paper
from scripts.benchmarks.data.registry import Array, Group

Made = tuple[Array, ...]
small = Group("small")


def seeded(name: str) -> np.random.Generator:
    """Random numbers of a set."""
    return np.random.default_rng(zlib.crc32(name.encode()))


for _name in ("breast_cancer", "wine", "iris"):
    small("classes", _name)(partial(getattr(own, f"load_{_name}"), return_X_y=True))


@small("classes", {"digits_3_8": (3, 8), "digits_4_9": (4, 9), "digits_1_7": (1, 7)})
def _pair(first: int, second: int) -> Made:
    X, y = own.load_digits(return_X_y=True)
    kept = np.isin(y, (first, second))
    return X[kept], y[kept] == second


@small("classes", "digits_odd")
def _odd() -> Made:
    X, y = own.load_digits(return_X_y=True)
    return X, y % 2


@small("classes", "digits_all")
def _all_digits() -> Made:
    X, y = own.load_digits(return_X_y=True)
    return resample(X, y, replace=False, n_samples=300, stratify=y, random_state=0)


@small("classes", "diabetes_halves")
def _diabetes_halves() -> Made:
    X, y = own.load_diabetes(return_X_y=True, scaled=False)
    return X, y > np.median(y)


@small("classes", "moons_small")
def _moons() -> Made:
    X, y = own.make_moons(300, noise=0.25, random_state=0)
    return 1e-3 * X, y


@small("classes", "circles_large")
def _circles() -> Made:
    X, y = own.make_circles(300, noise=0.08, factor=0.6, random_state=0)
    return 500.0 * X, y


@small(
    "classes",
    {"noise_100": (100, 400, 8), "noise_200": (200, 300, 5), "features_30": (30, 400, 15)},
)
def _mostly_noise(features: int, rows: int, informative: int) -> Made:
    return own.make_classification(
        rows, features, n_informative=informative, n_redundant=0, random_state=1
    )


@small("classes", "mixed_units")
def _mixed_units() -> Made:
    X, y = own.make_classification(400, 13, n_informative=6, random_state=2)
    return X * 10.0 ** np.arange(-6, 7), y


@small("classes", "offset_1e4")
def _offset() -> Made:
    X, y = own.make_classification(400, 6, n_informative=4, random_state=3)
    return X + 1e4, y


@small("classes", "series_6000")
def _series() -> Made:
    rng = seeded("series")
    t = np.sort(rng.uniform(0.0, 6000.0, 400))
    return t[:, None], rng.random(400) < 1.0 / (1.0 + np.exp(-4.0 * np.sin(t / 300.0)))


@small("classes", "imbalanced_5")
def _imbalanced() -> Made:
    X, y = own.make_classification(500, 8, n_informative=4, weights=[0.95], random_state=4)
    return 20.0 * X, y


@small("classes", "xor")
def _xor() -> Made:
    rng = seeded("xor")
    X = rng.uniform(-100.0, 100.0, (300, 2))
    return X, (X[:, 0] * X[:, 1] > 0.0) ^ (rng.random(300) < 0.05)


@small("classes", "blobs")
def _blobs() -> Made:
    X, y = own.make_blobs(300, 4, centers=3, cluster_std=3.0, random_state=5)
    return X * [1.0, 10.0, 100.0, 1000.0], y


@small("classes", "outlier")
def _outlier() -> Made:
    X, y = own.make_moons(300, noise=0.2, random_state=6)
    X[0, 0] = 1e6
    return X, y


@small("classes", "hastie")
def _hastie() -> Made:
    X, y = own.make_hastie_10_2(500, random_state=0)
    return 30.0 + 7.0 * X, y


@small("classes", "rings")
def _rings() -> Made:
    return own.make_gaussian_quantiles(n_samples=400, n_features=4, n_classes=3, random_state=7)


@small("classes", "skewed")
def _skewed() -> Made:
    rng = seeded("skewed")
    z = rng.standard_normal((400, 5))
    latent = z @ [1.5, -1.0, 0.5, 0.0, 0.0] + 0.5 * z[:, 0] * z[:, 1]
    return np.exp(2.0 * z), latent + rng.logistic(size=400) * 0.5 > 0.0


@small("classes", "income_flags")
def _income_and_flags() -> Made:
    rng = seeded("flags")
    income, age = rng.lognormal(10.0, 0.8, 400), rng.integers(18, 90, 400)
    flags = rng.random((400, 8)) < 0.3
    latent = 1.2 * (np.log(income) - 10.0) - 0.04 * (age - 50.0) + flags @ np.linspace(-1, 1, 8)
    return np.column_stack([income, age, flags]), latent + rng.logistic(size=400) > 0.0


@small("classes", "copies")
def _constant_and_copies() -> Made:
    X, y = own.make_moons(250, noise=0.3, random_state=8)
    return np.column_stack([X, X[:, 0], X[:, 0], np.full(250, 7.0), np.zeros(250)]), y


@small("classes", "wrong_labels")
def _wrong_labels() -> Made:
    return own.make_classification(
        400, 10, n_informative=5, flip_y=0.4, shift=50.0, scale=15.0, random_state=9
    )


@small("classes", "checkers")
def _checkers() -> Made:
    X = seeded("checkers").uniform(0.0, 4.0, (500, 2))
    return 1e5 * X, np.floor(X).sum(axis=1) % 2 == 1


@small("classes", "no_signal")
def _no_signal() -> Made:
    rng = seeded("nothing")
    return 1e3 * rng.standard_normal((200, 5)), rng.random(200) < 0.5


@small("classes", "strip_30")
def _strip() -> Made:
    X = seeded("strip").uniform(0.0, 1.0, (200, 30))
    return X, X[:, 0] + X[:, 1] > 1.0


for _name in ("ionosphere", "cancer", "pima532", "crabs", "sonar", "glass9"):
    small("classes", _name)(partial(paper.load, _name))
