"""Data sets as a newcomer has them: raw features in awkward units, at most 500 rows.

Classes, numbers and counts: scikit-learn's own sets, generators in units that nobody scaled, and
the raw files of `datasets` where there is a directory of them. Sets are numbered from 1 in their
order; those of even number are for choosing defaults, those of odd number for reporting.
Everything is seeded.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets as own
from sklearn.utils import resample

from scripts.benchmarks.data import public as datasets

__all__ = ["KINDS", "RawSet", "load", "names"]

Array = NDArray[Any]
Made = tuple[Array, ...]

KINDS = ("classes", "numbers", "counts")
_MOST_ROWS = 500


@dataclass(frozen=True)
class RawSet:
    """Features (N, p), targets (N,), and for counts perhaps what they were exposed to (N,)."""

    name: str
    kind: str
    number: int
    X: Array
    y: Array
    exposure: Array | None = None


def _random(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def _digits(keep: Callable[[Array], Array], label: Callable[[Array], Array]) -> Made:
    X, y = own.load_digits(return_X_y=True)
    kept = keep(y)
    return X[kept], label(y[kept])


def _pair(first: int, second: int) -> Callable[[], Made]:
    return lambda: _digits(lambda y: np.isin(y, (first, second)), lambda y: y == second)


def _all_digits() -> Made:
    X, y = own.load_digits(return_X_y=True)
    return resample(X, y, replace=False, n_samples=300, stratify=y, random_state=0)


def _diabetes_halves() -> Made:
    X, y = own.load_diabetes(return_X_y=True, scaled=False)
    return X, y > np.median(y)


def _moons() -> Made:
    X, y = own.make_moons(300, noise=0.25, random_state=0)
    return 1e-3 * X, y


def _circles() -> Made:
    X, y = own.make_circles(300, noise=0.08, factor=0.6, random_state=0)
    return 500.0 * X, y


def _mostly_noise(features: int, rows: int, informative: int) -> Made:
    return own.make_classification(
        rows, features, n_informative=informative, n_redundant=0, random_state=1
    )


def _mixed_units() -> Made:
    X, y = own.make_classification(400, 13, n_informative=6, random_state=2)
    return X * 10.0 ** np.arange(-6, 7), y


def _offset() -> Made:
    X, y = own.make_classification(400, 6, n_informative=4, random_state=3)
    return X + 1e4, y


def _series() -> Made:
    rng = _random("series")
    t = np.sort(rng.uniform(0.0, 6000.0, 400))
    return t[:, None], rng.random(400) < 1.0 / (1.0 + np.exp(-4.0 * np.sin(t / 300.0)))


def _imbalanced() -> Made:
    X, y = own.make_classification(500, 8, n_informative=4, weights=[0.95], random_state=4)
    return 20.0 * X, y


def _xor() -> Made:
    rng = _random("xor")
    X = rng.uniform(-100.0, 100.0, (300, 2))
    return X, (X[:, 0] * X[:, 1] > 0.0) ^ (rng.random(300) < 0.05)


def _blobs() -> Made:
    X, y = own.make_blobs(300, 4, centers=3, cluster_std=3.0, random_state=5)
    return X * [1.0, 10.0, 100.0, 1000.0], y


def _outlier() -> Made:
    X, y = own.make_moons(300, noise=0.2, random_state=6)
    X[0, 0] = 1e6
    return X, y


def _hastie() -> Made:
    X, y = own.make_hastie_10_2(500, random_state=0)
    return 30.0 + 7.0 * X, y


def _rings() -> Made:
    return own.make_gaussian_quantiles(n_samples=400, n_features=4, n_classes=3, random_state=7)


def _skewed() -> Made:
    rng = _random("skewed")
    z = rng.standard_normal((400, 5))
    latent = z @ [1.5, -1.0, 0.5, 0.0, 0.0] + 0.5 * z[:, 0] * z[:, 1]
    return np.exp(2.0 * z), latent + rng.logistic(size=400) * 0.5 > 0.0


def _income_and_flags() -> Made:
    rng = _random("flags")
    income, age = rng.lognormal(10.0, 0.8, 400), rng.integers(18, 90, 400)
    flags = rng.random((400, 8)) < 0.3
    latent = 1.2 * (np.log(income) - 10.0) - 0.04 * (age - 50.0) + flags @ np.linspace(-1, 1, 8)
    return np.column_stack([income, age, flags]), latent + rng.logistic(size=400) > 0.0


def _constant_and_copies() -> Made:
    X, y = own.make_moons(250, noise=0.3, random_state=8)
    return np.column_stack([X, X[:, 0], X[:, 0], np.full(250, 7.0), np.zeros(250)]), y


def _wrong_labels() -> Made:
    return own.make_classification(
        400, 10, n_informative=5, flip_y=0.4, shift=50.0, scale=15.0, random_state=9
    )


def _checkers() -> Made:
    X = _random("checkers").uniform(0.0, 4.0, (500, 2))
    return 1e5 * X, np.floor(X).sum(axis=1) % 2 == 1


def _no_signal() -> Made:
    rng = _random("nothing")
    return 1e3 * rng.standard_normal((200, 5)), rng.random(200) < 0.5


def _strip() -> Made:
    X = _random("strip").uniform(0.0, 1.0, (200, 30))
    return X, X[:, 0] + X[:, 1] > 1.0


def _iris_petal() -> Made:
    X = own.load_iris().data
    return X[:, [0, 1, 2]], X[:, 3]


def _wine_alcohol() -> Made:
    X = own.load_wine().data
    return X[:, 1:], X[:, 0]


def _cancer_symmetry() -> Made:
    X = own.load_breast_cancer().data
    return np.delete(X, 8, axis=1), X[:, 8]


def _friedman(which: int, scale: float = 1.0) -> Made:
    make = (own.make_friedman1, own.make_friedman2, own.make_friedman3)[which - 1]
    X, y = make(300, noise=(1.0, 60.0, 0.1)[which - 1], random_state=which)
    return X, scale * y


def _sine(outliers: bool) -> Made:
    rng = _random(f"sine{outliers}")
    t = np.sort(rng.uniform(0.0, 6000.0, 300))
    y = 1e3 * (np.sin(t / 300.0) + 0.2 * rng.standard_normal(300))
    if outliers:
        hit = rng.random(300) < 0.08
        y[hit] += 2e4 * rng.standard_normal(hit.sum())
    return t[:, None], y


def _outlying_plane() -> Made:
    rng = _random("plane")
    X = rng.normal(1e4, 10.0, (300, 6))
    y = (X - 1e4) @ [1.0, -1.0, 0.5, 0.0, 0.0, 0.0] + rng.standard_t(2.0, 300)
    return X, y


def _wide_line() -> Made:
    return own.make_regression(250, 40, n_informative=8, noise=20.0, random_state=10)


def _mixed_numbers() -> Made:
    X, y = own.make_friedman1(300, n_features=13, noise=1.0, random_state=11)
    return X * 10.0 ** np.arange(-6, 7), 1e-4 * y


def _steps() -> Made:
    rng = _random("steps")
    X = rng.uniform(0.0, 1e-3, (250, 2))
    return X, np.floor(4e3 * X[:, 0]) + 0.3 * rng.standard_normal(250)


def _season() -> Made:
    rng = _random("season")
    t = np.sort(rng.uniform(0.0, 6000.0, 300))
    return t[:, None], rng.poisson(6.0 * np.exp(np.sin(t / 300.0)))


def _towns() -> Made:
    rng = _random("towns")
    X = rng.standard_normal((300, 4)) * [1.0, 1e3, 1e-3, 50.0] + [0.0, 1e4, 0.0, 0.0]
    people = rng.lognormal(9.0, 1.0, 300)
    log_rate = -7.0 + 0.5 * X[:, 0] - 0.4 * (X[:, 1] / 1e3 - 10.0) + 0.3 * np.cos(X[:, 3] / 25.0)
    return X, rng.poisson(people * np.exp(log_rate)), people


def _rare() -> Made:
    rng = _random("rare")
    X = rng.uniform(0.0, 100.0, (400, 10))
    return X, rng.poisson(0.4 * np.exp(0.02 * (X[:, 0] - 50.0) - 0.01 * (X[:, 1] - 50.0)))


def _hours() -> Made:
    rng = _random("hours")
    X, hours = rng.uniform(0.0, 1.0, (250, 2)), rng.uniform(0.1, 40.0, 250)
    rate = 3.0 * np.exp(-((X[:, 0] - 0.4) ** 2 + (X[:, 1] - 0.6) ** 2) / 0.05) + 0.2
    return 1e-2 * X, rng.poisson(rate * hours), hours


def _large_counts() -> Made:
    rng = _random("large")
    X = rng.uniform(0.0, 10.0, (200, 3)) * [1.0, 1e4, 1e-4]
    return X, rng.poisson(200.0 + 50.0 * X[:, 0] + 100.0 * np.sin(X[:, 1] / 2e4))


def _bumps() -> Made:
    rng = _random("bumps")
    t = np.arange(200.0) + 1800.0
    rate = 1.0 + 12.0 * np.exp(-0.5 * ((t - 1850.0) / 8.0) ** 2) + 4.0 * (t > 1930.0)
    return t[:, None], rng.poisson(rate)


#: In the order of their numbers; what has no maker is in the directory of raw files.
_SETS: dict[str, dict[str, Callable[[], Made] | None]] = {
    "classes": {
        "breast_cancer": lambda: own.load_breast_cancer(return_X_y=True),
        "wine": lambda: own.load_wine(return_X_y=True),
        "iris": lambda: own.load_iris(return_X_y=True),
        "digits_3_8": _pair(3, 8),
        "digits_4_9": _pair(4, 9),
        "digits_1_7": _pair(1, 7),
        "digits_odd": lambda: _digits(lambda y: y >= 0, lambda y: y % 2),
        "digits_all": _all_digits,
        "diabetes_halves": _diabetes_halves,
        "moons_small": _moons,
        "circles_large": _circles,
        "noise_100": lambda: _mostly_noise(100, 400, 8),
        "noise_200": lambda: _mostly_noise(200, 300, 5),
        "features_30": lambda: _mostly_noise(30, 400, 15),
        "mixed_units": _mixed_units,
        "offset_1e4": _offset,
        "series_6000": _series,
        "imbalanced_5": _imbalanced,
        "xor": _xor,
        "blobs": _blobs,
        "outlier": _outlier,
        "hastie": _hastie,
        "rings": _rings,
        "skewed": _skewed,
        "income_flags": _income_and_flags,
        "copies": _constant_and_copies,
        "wrong_labels": _wrong_labels,
        "checkers": _checkers,
        "no_signal": _no_signal,
        "strip_30": _strip,
        "ionosphere": None,
        "cancer": None,
        "pima532": None,
        "crabs": None,
        "sonar": None,
        "glass9": None,
    },
    "numbers": {
        "diabetes": lambda: own.load_diabetes(return_X_y=True, scaled=False),
        "iris_petal": _iris_petal,
        "wine_alcohol": _wine_alcohol,
        "cancer_symmetry": _cancer_symmetry,
        "friedman1": lambda: _friedman(1),
        "friedman2": lambda: _friedman(2),
        "friedman3": lambda: _friedman(3, 1e5),
        "sine_6000": lambda: _sine(False),
        "sine_outliers": lambda: _sine(True),
        "plane_outliers": _outlying_plane,
        "wide_line": _wide_line,
        "mixed_numbers": _mixed_numbers,
        "steps": _steps,
    },
    "counts": {
        "season_6000": _season,
        "towns": _towns,
        "rare": _rare,
        "hours": _hours,
        "large_counts": _large_counts,
        "bumps": _bumps,
        "mining": None,
    },
}


def names(kind: str | None = None) -> tuple[str, ...]:
    """Names of all sets, or of one kind, in the order of their numbers."""
    return tuple(name for k in KINDS if kind in (None, k) for name in _SETS[k])


def load(name: str, directory: str | os.PathLike[str] | None = None) -> RawSet | None:
    """One data set; None if its file is asked for and there is no directory.

    More than 500 rows are sampled, with every class in its share.

    Raises
    ------
    KeyError
        If there is no set of that name.
    datasets.DataError
        If a file of the directory is missing or altered.
    """
    kind = next((kind for kind in KINDS if name in _SETS[kind]), None)
    if kind is None:
        raise KeyError(f"unknown data set {name!r}; known are {', '.join(names())}")
    make = _SETS[kind][name]
    if make is None and directory is None:
        return None
    made: Made = datasets.load(name, directory) if make is None else make()  # type: ignore[arg-type]
    X, y = np.asarray(made[0], dtype=float), np.asarray(made[1])
    if kind == "classes":
        y = np.unique(y, return_inverse=True)[1]
        if len(X) > _MOST_ROWS:
            X, y = resample(X, y, replace=False, n_samples=_MOST_ROWS, stratify=y, random_state=0)
    else:
        X, y = X[:_MOST_ROWS], y[:_MOST_ROWS].astype(float)
    number = 1 + list(_SETS[kind]).index(name)
    return RawSet(name, kind, number, X, y, np.asarray(made[2]) if len(made) > 2 else None)
