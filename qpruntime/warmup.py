"""Compile what the public functions need, before it is waited for: `python -m qpruntime warmup`.

Small problems of every kind are solved, and what numba compiles for them stays in its cache.
Deep processes are JAX's, which keeps nothing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from qpruntime import _numba
from qpruntime.bayesopt import Optimizer
from qpruntime.effects.groups import Groups
from qpruntime.effects.model import EffectsModel
from qpruntime.effects.spde import Plane
from qpruntime.errors import ConvergenceWarning, InputError
from qpruntime.estimators.boosted_trees import as_arrays
from qpruntime.estimators.classifier import GPClassifier
from qpruntime.estimators.ordinal import GPOrdinal
from qpruntime.estimators.poisson import GPPoissonRegressor
from qpruntime.estimators.preference import GPPreference
from qpruntime.estimators.regressor import GPRegressor
from qpruntime.estimators.robust import GPRobustRegressor
from qpruntime.estimators.survival import GPSurvival
from qpruntime.inference.binned_counts import count_bins
from qpruntime.inference.dense.cholesky_kernels import BLOCK
from qpruntime.inference.infer import infer
from qpruntime.inference.markov.infer import infer_series
from qpruntime.inference.multiclass.infer import infer_classes
from qpruntime.inference.multiclass.sparse import infer_sparse_classes
from qpruntime.inference.operator.visit_kernels import quadratic_forms
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.precision.infer import infer_precision
from qpruntime.inference.sparse.infer import infer_sparse
from qpruntime.interop.functions import functions
from qpruntime.learning.options import Inducing, Search
from qpruntime.projection.projector import project

__all__ = ["GROUPS", "WarmupStep", "run_step", "steps_of"]

_N = 24
_FEW: dict[str, Any] = {"optimize": Search(max_iter=3)}


class WarmupStep(NamedTuple):
    """One step of a warm-up: what it was, how many kernels it compiled, and its seconds."""

    group: str
    words: str
    kernels: int
    seconds: float


def _data() -> tuple[Any, Any, Any]:
    """Return inputs (N, 2), a smooth function of them (N,), and counts."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (_N, 2))
    f = np.sin(2.0 * X[:, 0]) + 0.3 * rng.standard_normal(_N)
    return X, f, rng.poisson(np.exp(1.0 + f))


def _classes(**options: Any) -> None:
    X, f, _ = _data()
    model = GPClassifier(random_state=0, **_FEW | options).fit(X, f > 0.0)
    model.predict(X)
    model.predict_log_proba(X)
    model.predict_interval(X)


def _three_classes() -> None:
    X, f, _ = _data()
    GPClassifier(**_FEW).fit(X, np.digitize(f, [-0.5, 0.5])).predict_proba(X)


def _joint_posterior() -> None:
    X, f, _ = _data()
    K = RBF(1.0)(X)
    for method, limits in (("qp", [-0.5, 0.5]), ("ep", [-0.5, 0.0, 0.5])):
        post = infer_classes(K, np.digitize(f, limits), method)  # type: ignore[arg-type]
        post.predict_log_proba(K[:3], np.diag(K)[:3])
    labels = np.digitize(f, [-0.5, 0.5])
    infer_sparse_classes(X, labels, RBF(1.0), X[:3]).predict_log_proba(X[:3])


def _counts(**options: Any) -> None:
    X, _, counts = _data()
    model = GPPoissonRegressor(random_state=0, **_FEW | options).fit(X, counts)
    model.predict(X)
    model.predict_quantiles(X)
    model.predict_log_pmf(X, counts)


def _binned_counts() -> None:
    kernel: Any = ConstantKernel(1.0) * RBF(4.0)
    points, operator, mean = count_bins(np.arange(7.0), kernel)
    infer(kernel(points), np.arange(6), "poisson-exp", "ep", operator=operator, mean=mean)


def _varied_counts() -> None:
    """Fit counts that vary more than Poisson ones, by all rows and by inducing points."""
    X, _, counts = _data()
    kernel: Any = ConstantKernel(2.0) * RBF(1.0)
    for method in ("qp", "ep"):
        infer(kernel(X), counts, "negative-binomial", method).loo()
        infer_sparse(X, counts, kernel, X[:6], "negative-binomial", method).loo()


def _outliers(**options: Any) -> None:
    X, f, _ = _data()
    model = GPRobustRegressor(random_state=0, **_FEW | options).fit(X, f)
    model.predict(X, return_std=True)
    model.predict_quantiles(X)
    model.predict_log_density(X, f)


def _kinds() -> None:
    """Likelihoods that are learnt, with closed moments."""
    X, f, counts = _data()
    GPRegressor(**_FEW).fit(X, f).predict_quantiles(X)
    GPRegressor(likelihood="gamma", **_FEW).fit(X, np.exp(f)).loo()
    GPRegressor(likelihood="zero-inflated", **_FEW).fit(X, counts)
    for noise in ("logistic", "probit"):
        GPOrdinal(likelihood=noise, **_FEW).fit(X, np.digitize(f, [-0.5, 0.5]))
    times = np.exp(f)
    spans = np.column_stack([times, np.where(f > 0.5, np.inf, times + (f > 0.0))])
    for name in ("weibull", "log-logistic", "log-normal"):
        GPSurvival(likelihood=name, **_FEW).fit(X, spans)


def _preferences() -> None:
    """Compile preferences of few and of many comparisons, which take other algebra; with ties."""
    X, f, _ = _data()
    pairs = np.array([(i, j) for i in range(8) for j in range(8) if f[i] > f[j]])
    for count in (6, len(pairs)):
        scores = np.where(np.arange(count) % 5, 1.0, 0.5)
        for ties in (None, scores):
            model = GPPreference(**_FEW).fit(X[:8], pairs[:count], scores=ties)
            model.predict_proba(pairs)
    quadratic_forms(csr_array(np.eye(2)), np.eye(2))


def _loo() -> None:
    for method in ("qp", "ep"):
        _classes(method=method, optimize=Search("loo", max_iter=3))


def _covariances() -> None:
    X, f, _ = _data()
    K, y = RBF(1.0)(X), np.where(f > 0.0, 1.0, -1.0)
    for method in ("qp", "ep", "vb"):
        post = infer(K, y, "probit", method)
        post.predict(K[:3], np.diag(K)[:3])
        post.loo()
    infer(K, y, "probit", "ep").evidence_gradient(K)
    infer(K, y, "probit", weights=np.linspace(0.5, 2.0, _N))
    infer(K, y, "logistic", order="sequential")
    # Sweeps apply rank-one updates in blocks, if there are more rows than one block has.
    rows = BLOCK + 1
    infer(np.eye(rows), np.ones(rows), "probit", order="sequential", max_sweeps=1)


def _projections() -> None:
    for method in ("qp", "ep"):
        project("probit", 0.0, 1.0, 1, method)
        project("probit", 0.0, 1.0, 1, method, "exact")


def _wasserstein() -> None:
    X, f, _ = _data()
    project("probit", 0.0, 1.0, 1, "wp", p=1.5)
    infer(RBF(1.0)(X), np.where(f > 0.0, 1.0, -1.0), "probit", "wp", p=1.5)


def _sparse_posterior() -> None:
    X, f, _ = _data()
    y = np.where(f > 0.0, 1.0, -1.0)
    for method in ("qp", "ep"):
        post: Any = infer_sparse(X, y, ConstantKernel(2.0) * RBF(1.0), X[:6], method=method)
        post.extend(X[:8], y[:8]).predict(X)
        post.loo()


def _sparse_precision() -> None:
    """Fit groups of three rows, equal ones among them, and a dense precision."""
    _, f, counts = _data()
    codes = np.arange(_N) // 3
    A = csr_array((np.ones(_N), (np.arange(_N), codes)), shape=(_N, _N // 3))
    y = np.where(f > 0.0, 1.0, -1.0)
    for likelihood, observed in (("probit", y), ("logistic", y), ("poisson-exp", counts)):
        post = infer_precision(A, np.eye(_N // 3), observed, likelihood)
        post.predict(np.eye(_N // 3))
        post.loo()
        post.corrected_evidence()
    post = infer_precision(A, np.eye(_N // 3), y, "probit", collapse=False)
    rows = np.hstack([A.toarray(), f[:, None]])
    post = infer_precision(rows, np.eye(_N // 3 + 1), y, "probit")
    post.coefficient(_N // 3)
    post.loo_groups(codes)
    post.sample(random_state=0)
    solution_of(post).level_sums()
    full = np.eye(60) + 1.0 / 60.0
    infer_precision(np.eye(60)[:_N], full, y, "probit").evidence_gradient(full)


def _effects() -> None:
    """Fit groups and a field, whose mesh has more nodes than eigenvalues are taken of."""
    X, f, counts = _data()
    data = {"x": X[:, 0], "y": X[:, 1], "g": np.arange(_N) // 3}
    terms = [Groups("g"), Plane("x", "y", spacing=0.15)]
    model = EffectsModel(terms, "poisson", integrate="mode", correction=None, max_iterations=2)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(data, counts).predict(data)
    EffectsModel([Groups("g")]).fit(data, f > 0.0).summary()


def _nearest_rows() -> None:
    """Infer as default fits to many rows do: by nearest rows of few or many features."""
    for columns in (2, 12):
        X = np.random.default_rng(0).standard_normal((80, columns))
        y = np.where(X[:, 0] > 0.0, 1.0, -1.0)
        for kernel in (RBF(1.0), Matern(1.0, nu=0.5), Matern(1.0, nu=2.5)):
            of = ConstantKernel(1.0) + ConstantKernel(2.0) * kernel
            post: Any = infer_sparse(X, y, of, X[:20], nearest=5, method="qp")
            post.predict(X[:10])
            post.loo()


def _saved_boosting() -> None:
    X, f, _ = _data()
    as_arrays(HistGradientBoostingClassifier(max_iter=1).fit(X, f > 0.0)).predict_proba(X)


_INDUCING: dict[str, Any] = {"inducing": Inducing(6, subsample=16)}


def _series_posterior() -> None:
    _, f, _ = _data()
    t, y = np.linspace(0.0, 9.0, _N), np.where(f > 0.0, 1.0, -1.0)
    kernels: list[Any] = [Matern(1.0, nu=nu) for nu in (0.5, 1.5, 2.5)]
    kernels.append(Matern(1.0, nu=1.5) + ConstantKernel(1.0))
    for kernel in kernels:
        post = infer_series(t, y, 2.0 * kernel)
        post.predict([3.3, 20.0])
        post.loo()
        infer_series(t, y, 2.0 * kernel, method="ep").evidence_gradient()
    post = infer_series(t, y, 2.0 * kernels[1])
    post.extend(t[-1] + t[1:5], y[:4])
    post.sample([3.3], n_samples=2)


def _series_fits() -> None:
    _, f, counts = _data()
    t = np.linspace(0.0, 9.0, _N)[:, None]
    options: dict[str, Any] = {"solver": "markov", **_FEW}
    GPClassifier(**options).fit(t, f > 0.0).predict_proba(t)
    GPPoissonRegressor(**options).fit(t, counts).predict(t)
    GPRobustRegressor(**options).fit(t, f).predict(t)


def _corrections() -> None:
    X, f, counts = _data()
    K = RBF(1.0)(X)
    for y, likelihood in ((np.where(f > 0.0, 1.0, -1.0), "probit"), (counts, "poisson-exp")):
        post = infer(K, y, likelihood, "ep")
        post.marginals().quantile([0.05, 0.95])
        post.corrected_evidence()
        post.check()


def _corrected_fits() -> None:
    _classes(correction="blend")
    _outliers(correction="blend")


def _optimiser() -> None:
    optimizer = Optimizer([(0.0, 1.0), (0.0, 1.0)], constraints=1, noise=0.0, random_state=0)
    for _ in range(5):
        x = optimizer.ask()
        optimizer.tell(x, f=float(x.sum()), c=[float(x[0] - 0.3)])
    optimizer.ask(2)
    optimizer.recommend()


def _functions() -> None:
    for name, y in (("probit", 1.0), ("student-t", 0.3)):
        parts = functions(name)
        for method in (
            parts.log_partition,
            parts.moments,
            parts.sigma_star,
            parts.expected_log_prob,
        ):
            method(0.0, 1.0, y)
            method(0.0, 1.0, y, derivatives=True)
    functions("logistic").log_partition(5.0, 0.01, 1, derivatives=True)


_Step = tuple[str, Callable[[], None]]

#: Steps of a warm-up by the name of their group.
GROUPS: dict[str, tuple[_Step, ...]] = {
    "dense": (
        ("projections, looked up and integrated", _projections),
        ("infer: QP, EP and VB", _covariances),
        ("GPClassifier", _classes),
        ("GPClassifier, three classes", _three_classes),
        ("infer_classes, infer_sparse_classes", _joint_posterior),
        ("GPClassifier, leave-one-out", _loo),
        ("GPClassifier, EP and logistic", lambda: _classes(method="ep", likelihood="logistic")),
        ("GPPoissonRegressor, square link", _counts),
        ("GPPoissonRegressor, exponential link", lambda: _counts(link="exp")),
        ("counts that vary more", _varied_counts),
        ("counts over bins", _binned_counts),
        ("GPRobustRegressor", _outliers),
        ("GPRegressor, GPOrdinal, GPSurvival", _kinds),
        ("GPPreference", _preferences),
    ),
    "sparse": (
        ("infer_sparse", _sparse_posterior),
        ("infer_sparse, nearest rows", _nearest_rows),
        ("boosting of models from files", _saved_boosting),
        ("infer_precision", _sparse_precision),
        ("EffectsModel", _effects),
        ("GPClassifier, inducing points", lambda: _classes(**_INDUCING)),
        ("GPPoissonRegressor, inducing points", lambda: _counts(**_INDUCING)),
        ("GPRobustRegressor, inducing points", lambda: _outliers(**_INDUCING)),
    ),
    "series": (("infer_series", _series_posterior), ("fits to series", _series_fits)),
    "corrections": (
        ("marginals and evidence", _corrections),
        ('correction="blend"', _corrected_fits),
    ),
    "functions": (("values and derivatives", _functions),),
    "optimiser": (("Optimizer", _optimiser),),
    "wasserstein": (('method="wp", p = 1.5', _wasserstein),),
}


def steps_of(groups: Iterable[str] = ()) -> list[tuple[str, int]]:
    """Return the steps of these groups, of all if none is named: each its group and its number.

    Raises
    ------
    InputError
        If there is no such group.
    """
    wanted = list(groups)
    for name in wanted:
        if name not in GROUPS:
            raise InputError(f"group must be one of {', '.join(GROUPS)}, got {name!r}")
    return [(name, k) for name in wanted or GROUPS for k in range(len(GROUPS[name]))]


def run_step(group: str, number: int) -> WarmupStep:
    """Compile the kernels of one step of a group."""
    words, step = GROUPS[group][number]
    begun, before = time.perf_counter(), _numba.compilations()
    # Small problems, cut off early: what they warn of is meant.
    with _numba.unannounced(), warnings.catch_warnings(action="ignore"):
        step()
    return WarmupStep(group, words, _numba.compilations() - before, time.perf_counter() - begun)
