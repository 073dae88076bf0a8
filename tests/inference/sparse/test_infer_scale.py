"""Rows that observe a multiple of f: the dense engine on the scaled covariance; equal scales."""

import math
import pickle

import numpy as np
import pytest
from scipy.linalg import solve_triangular
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import InputError, infer, infer_sparse
from qpruntime.execution.executors import Divided, Executor
from qpruntime.inference.sparse import data
from tests.inference.sparse.test_infer import FOURTH, HEAVY, KERNEL, LABELS, NOISY, T4, X, Z, fitc
from tests.tools.cases import every_case

RNG = np.random.default_rng(11)
S = np.sqrt(RNG.uniform(0.05, 8.0, 40))
RATE = (1.2 + 0.8 * np.sin(1.3 * X[:, 0])) ** 2
COUNTS = RNG.poisson(S**2 * RATE).astype(float)
#: Exposures of 1e-6, 1 and 1e6: events of none to nearly the most there may be.
EXTREME = np.array([1e-3, 1e3, 1e-3, 1.0])[np.arange(40) % 4]
EVENTS = RNG.poisson((EXTREME * (0.8 + 0.15 * np.sin(1.3 * X[:, 0]))) ** 2).astype(float)
#: Under these f has one sign.
MILD, NARROW = ConstantKernel(0.2) * RBF(0.9), ConstantKernel(0.04) * RBF(0.9)
POISSON = {"likelihood": "poisson", "mean": 1.2}


def agree(post, dense, s, within=1e-10):
    """Results are those of the dense engine on S K S, told of f."""
    for one, two in (
        (post.sites.tau, dense.sites.tau * s**2),
        (post.sites.nu, dense.sites.nu * s),
        (post.loo(), dense.loo()),
        (post.log_evidence, dense.log_evidence),
        (post.mean, dense.mean / s),
        (post.variance, dense.variance / s**2),
    ):
        # What the tolerance of the fixed points leaves.
        np.testing.assert_allclose(one, two, rtol=within, atol=within * (1 + np.abs(two).min()))


DENSE = [
    (MILD, COUNTS, "poisson", "qp", S, {"mean": 1.2 + 0.1 * np.cos(X[:, 0])}),
    (MILD, COUNTS, "poisson", "ep", S, {"mean": 1.2, "weights": FOURTH}),
    (NOISY, HEAVY, T4, "ep", S, {"weights": FOURTH, "mean": 0.1}),
    (NOISY, LABELS, "probit", "qp", S, {}),
    (NARROW, EVENTS, "poisson", "ep", EXTREME, {"mean": 0.8, "tol": 1e-9}),
    (NARROW, EVENTS, "poisson", "qp", EXTREME, {"mean": 0.8, "tol": 1e-9}),
]


@every_case("kernel, y, likelihood, method, s, options", DENSE)
def test_of_power_one_it_is_the_dense_engine_on_scaled_fitc(
    kernel, y, likelihood, method, s, options
):
    both = {"method": method, "tol": 1e-12, "max_sweeps": 300, **options}
    post = infer_sparse(X, y, kernel, Z, likelihood, power=1.0, jitter=0.0, scale=s, **both)
    K = fitc(kernel, X, Z) * np.outer(s, s)
    centre = s * options.get("mean", 0.0)
    dense = infer(K, y, likelihood, order="parallel", **{**both, "mean": centre})
    assert post.converged
    assert dense.converged
    agree(post, dense, s, 1e-9)
    again = infer_sparse(
        X, y, kernel, Z, likelihood, power=1.0, jitter=0.0, scale=s, sites=post.sites, **both
    )
    assert again.n_sweeps <= 3
    agree(again, dense, s, 1e-9)


def test_with_all_inputs_inducing_it_is_the_dense_engine():
    kernel, x, y, s = ConstantKernel(0.1) * RBF(0.3), X[::2], COUNTS[::2], S[::2]
    for method in ("ep", "qp"):
        both = {"likelihood": "poisson", "method": method, "power": 0.5, "tol": 1e-12}
        post = infer_sparse(x, y, kernel, x, jitter=0.0, scale=s, mean=1.2, **both)
        dense = infer(kernel(x) * np.outer(s, s), y, mean=1.2 * s, **both)
        # r, which is nothing but rounding here, is added to variances.
        agree(post, dense, s, 1e-8)
        new = np.array([[0.1], [7.0]])
        expected = dense.predict(kernel(new, x) * s, [0.1, 0.1], mean=1.2)
        for one, two in zip(post.predict(new), expected, strict=True):
            np.testing.assert_allclose(one, two, rtol=0.0, atol=1e-8)


def test_equal_scales_are_another_prior():
    """To the bits where they are a power of two: later rows and tied sites as well."""

    def found(factor, s):
        kernel = ConstantKernel(2.0 * factor**2) * RBF(0.9)
        given = {"likelihood": "poisson", "tol": 1e-10}
        scale = None if s == 1.0 else np.full(40, s)
        post = infer_sparse(X, COUNTS, kernel, Z, mean=1.2 * factor, scale=scale, **given)
        assert (post._solution.engine.rows.scale is None) == (s == 1.0)
        for later in (
            post,
            post.extend(X, COUNTS, scale=scale),
            post.extend(X, COUNTS, scale=scale, sites="tied"),
        ):
            unit = factor**2
            yield later.log_evidence, later.history, later._solution.least(), later.loo()
            yield later.sites.tau * unit, later.sites.nu * factor
            for mean, variance in (later.predict(Z), (later.mean, later.variance)):
                yield mean / factor, variance / unit

    for plain, scaled in zip(found(2.0, 1.0), found(1.0, 2.0), strict=True):
        for one, two in zip(plain, scaled, strict=True):
            np.testing.assert_array_equal(one, two)
    ones, none = (
        infer_sparse(X, COUNTS, KERNEL, Z, **POISSON, scale=s) for s in (np.ones(40), None)
    )
    assert ones._solution.engine.rows.scale is None
    np.testing.assert_array_equal(ones.sites, none.sites)


STEP = 1e-4
SLOPES = [
    (MILD, COUNTS, "poisson", S, {"mean": 1.2, "power": 0.5}),
    (NARROW, EVENTS, "poisson", EXTREME, {"mean": 0.8, "power": 1.0, "tol": 1e-9}),
    (NOISY, HEAVY, "laplace(scale=0.5)", S, {"mean": 0.1, "power": 1.0, "weights": FOURTH}),
]


@every_case("k, y, likelihood, s, options", SLOPES)
def test_gradient_by_differences(k, y, likelihood, s, options):
    def settled(theta=0.0, move=0.0, mean=0.0, noise=0.0):
        named = likelihood.replace("0.5", repr(0.5 * math.exp(noise)))
        moved = Z + move * (np.arange(len(Z)) == 1)[:, None]
        given = {"method": "ep", "tol": 1e-11, "scale": s, **options}
        given["mean"] += mean
        return infer_sparse(X, y, k.clone_with_theta(k.theta + theta), moved, named, **given)

    def slope(name, unit=1.0):
        ends = [settled(**{name: sign * STEP * unit}).log_evidence for sign in (1.0, -1.0)]
        return (ends[0] - ends[1]) / (2.0 * STEP)

    names = ["scale"] if "scale" in likelihood else []
    found = settled()._solution.engine.evaluate(0, names)
    expected = [slope("theta", unit) for unit in np.eye(k.theta.size)]
    expected += [slope("move"), slope("mean")] + [slope("noise") for _ in names]
    computed = [*found.by_theta, found.by_Z[1, 0], found.by_mean, *found.by_parameters]
    # Second order in the step leaves some third derivatives times 2e-9.
    bound = 1.0 + np.abs(expected).max()
    np.testing.assert_allclose(computed, expected, rtol=0.0, atol=2e-7 * bound)


def test_later_rows_are_dense_inference_from_the_posterior_there_was():
    given = {"likelihood": "poisson", "method": "qp", "tol": 1e-12}
    options = {"power": 1.0, "mean": 1.2, "scale": S[:25]}
    old = infer_sparse(X[:25], COUNTS[:25], KERNEL, Z, **options, **given)
    x, y, s = X[25:], COUNTS[25:], S[25:]
    new = pickle.loads(pickle.dumps(old)).extend(x, y, scale=s)
    phi, r = old._solution.inducing.features(x)
    half = solve_triangular(old._solution.root, phi.T, lower=True)
    K = (half.T @ half + np.diag(r)) * np.outer(s, s)
    dense = infer(K, y, mean=s * old.predict(x)[0], **given)
    gain = new.log_evidence - old.log_evidence
    np.testing.assert_allclose(gain, dense.log_evidence, rtol=0.0, atol=1e-9)
    np.testing.assert_allclose(new.mean, dense.mean / s, rtol=0.0, atol=1e-9)
    np.testing.assert_allclose(new.variance, dense.variance / s**2, rtol=0.0, atol=1e-9)
    np.testing.assert_allclose(new.loo(), dense.loo(), rtol=0.0, atol=1e-9)
    tied = old.extend(x, y, scale=s, sites="tied")
    # Sites that are shared while they settle: docs/bench-cost.md has by how much.
    assert abs(tied.log_evidence - new.log_evidence) < 0.1


class Sent(Executor):
    """Carries out calls with what would travel to another process."""

    def each(self, calls, take):
        for number, (function, item) in enumerate(calls):
            assert isinstance(item, Divided)
            away = pickle.loads(pickle.dumps((function, (item.make(item.number), item.rest))))
            take(number, away[0](away[1]))


def test_whoever_holds_rows_and_computes_the_bits_are_the_same(tmp_path, monkeypatch):
    zarr, dask_array = pytest.importorskip("zarr"), pytest.importorskip("dask.array")
    monkeypatch.setattr(data, "CHUNK", 90)
    n = 400
    x, s = RNG.standard_normal((n, 2)), RNG.uniform(0.3, 3.0, n)
    y = RNG.poisson((s * (1.5 + np.sin(x[:, 0]))) ** 2).astype(float)
    stored = zarr.create_array(str(tmp_path / "x.zarr"), shape=x.shape, chunks=(70, 2), dtype="f8")
    stored[:] = x
    chunked = dask_array.from_array(x, chunks=(77, 2))
    given = {"Z": x[:9], "likelihood": "poisson", "mean": 1.5, "power": 1.0}

    def run(inputs, scale, **options):
        return infer_sparse(inputs, y, RBF(), **given, scale=scale, **options)

    plain = run(x, s, n_jobs=1)
    others = [
        run(x, s, n_jobs=3, memory=0),
        run(stored, s),
        run(chunked, dask_array.from_array(s, chunks=99)),
        run(np.asfortranarray(x), list(s)),
    ]
    for inputs in (x, stored, chunked):
        with monkeypatch.context() as patch:
            patch.setattr("qpruntime.inference.sparse.infer.executor_of", lambda *_: Sent())
            others.append(run(inputs, s))
    for post in others:
        np.testing.assert_array_equal(post.sites, plain.sites)
        np.testing.assert_array_equal(post.loo(), plain.loo())
        assert post.log_evidence == plain.log_evidence
    assert len(pickle.dumps(plain)) < 8 * n
    # Order of rows does not matter but to rounding.
    back = RNG.permutation(n)
    other = infer_sparse(x[back], y[back], RBF(), **given, scale=s[back], tol=1e-10)
    whole = infer_sparse(x, y, RBF(), **given, scale=s, tol=1e-10)
    np.testing.assert_allclose(other.loo(), whole.loo()[back], rtol=0.0, atol=1e-8)


def test_checkpoints_are_of_scales_too(tmp_path, monkeypatch):
    monkeypatch.setattr("qpruntime.inference.sparse.checkpoint.EVERY", 0.0)
    given = {**POISSON, "checkpoint": tmp_path / "sites.npz"}
    first = infer_sparse(X, COUNTS, KERNEL, Z, scale=S, **given)
    again = infer_sparse(X, COUNTS, KERNEL, Z, scale=S.copy(), resume=True, **given)
    assert again.n_sweeps < first.n_sweeps
    for other in (None, 1.001 * S):
        with pytest.raises(InputError, match="data is"):
            infer_sparse(X, COUNTS, KERNEL, Z, scale=other, resume=True, **given)


def test_bad_scales():
    post = infer_sparse(X, COUNTS, KERNEL, Z, scale=S, **POISSON)
    before = post.predict(X)
    seventh = np.arange(40) == 7
    for bad, words in (
        (2.0, r"scale must have shape \(40,\)"),
        (S[:3], r"scale must have shape \(40,\), got \(3,\)"),
        (np.where(seventh, 0.0, S), "scale must be positive.*got 0 at row 7; leave out"),
        (-S, "scale must be positive"),
        (np.where(seventh, 1e200, S), r"to 1e\+100, got 1e\+200 at row 7"),
        (np.where(seventh, np.nan, S), r"scale\[7\] is nan"),
        (np.where(seventh, np.inf, S), r"scale\[7\] is inf"),
        (np.array(["1"] * 40), "scale must be an array of real numbers"),
    ):
        for call in (
            lambda s: infer_sparse(X, COUNTS, KERNEL, Z, scale=s, **POISSON),
            lambda s: post.extend(X, COUNTS, scale=s),
        ):
            with pytest.raises(InputError, match=words):
                call(bad)
    np.testing.assert_array_equal(post.predict(X), before)
