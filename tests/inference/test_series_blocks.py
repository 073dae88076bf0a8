"""Series in blocks of time: the answer of one pass after the other, wherever they are swept."""

from __future__ import annotations

import pickle
import threading
import time
from dataclasses import replace

import cloudpickle
import numpy as np
import pytest
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern, WhiteKernel

from dask_cluster import RealCluster
from qpruntime import GPClassifier, InputError, infer_series, likelihoods
from qpruntime.execution.calls import Threads
from qpruntime.inference.markov import places
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.rows import Rows
from qpruntime.inference.markov.state_space import state_space
from qpruntime.inference.markov.transfer import folded, messages_between
from qpruntime.inference.sites import Sites
from qpruntime.learning.series import SeriesFamily, SeriesObjective
from qpruntime.projection.projector import Projector

TIGHT = {"tol": 1e-11, "max_sweeps": 500}
KERNEL = 2.0 * Matern(0.9, nu=1.5)
LONG = 0.01 * DotProduct(1.0) + ConstantKernel(2.0) + Matern(5.0, nu=0.5) + WhiteKernel(0.1)


def series(n, seed=0):
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0.0, n / 20.0, n))
    t[n // 2 : n // 2 + 3] = t[n // 2]
    f = 2.0 * np.sin(t) + np.cos(0.31 * t)
    return t, np.where(f + rng.standard_normal(n) > 0.0, 1.0, -1.0), f + 0.3 * rng.standard_t(3, n)


def worst(found, right):
    pairs = [
        *zip(found.sites, right.sites, strict=True),
        *((getattr(found, name), getattr(right, name)) for name in ("mean", "variance", "log_z")),
    ]
    off = max(np.max(np.abs(a - b) / (1.0 + np.abs(b))) for a, b in pairs)
    return max(off, abs(found.log_evidence / right.log_evidence - 1.0))


class Posted(Threads):
    """Calls as a cluster gets them: everything travels, and travels back."""

    def run(self, function, items, progress=None):
        shared = cloudpickle.dumps(function)
        return [
            pickle.loads(pickle.dumps(pickle.loads(shared)(pickle.loads(pickle.dumps(item)))))
            for item in items
        ]


def test_blocks_have_the_fixed_point_of_one_piece(monkeypatch):
    """Threads; and calls that travel. Constants and trends reach over every block."""
    t, y, real = series(1200)
    cases = [
        (y, KERNEL, "probit", {"n_jobs": 2, "blocks": 4}),
        (y, LONG, "probit", {"n_jobs": 1, "blocks": 5}),
        (real, KERNEL, likelihoods.get("student-t", nu=3.0, scale=0.3), {"n_jobs": 2}),
        (y, KERNEL, "probit", {"n_jobs": 2, "blocks": 3, "weights": 1.0 + (t > 9.0)}),
    ]
    monkeypatch.setattr("qpruntime.inference.markov.parts.ROWS", 500)
    for k, (given, kernel, likelihood, options) in enumerate(cases):
        options = {"method": "ep", **TIGHT, **options}
        one = {name: v for name, v in options.items() if name not in ("n_jobs", "blocks")}
        whole = infer_series(t, given, kernel, likelihood, **one)
        with monkeypatch.context() as patch:
            if k % 2:
                patch.setattr(places, "executor_of", lambda *_: Posted(1))
            found = infer_series(t, given, kernel, likelihood, **options)
        assert worst(found, whole) < 1e-9, k
        assert found.converged == whole.converged, k
    # The reported sites start the next one: nothing is left to do.
    again = infer_series(
        t, y, KERNEL, sites=found.sites, n_jobs=2, blocks=2, weights=one["weights"]
    )
    assert again.n_sweeps <= 2


def test_messages_between_parts_are_those_of_one_pass():
    t, y, _ = series(60, seed=1)
    rng = np.random.default_rng(2)
    tau, nu = rng.uniform(0.0, 2.0, 60), rng.standard_normal(60)
    whole = Series(t, y, Projector("probit", "ep"), np.zeros(60))
    for kernel in (KERNEL, 2.0 * Matern(0.9, nu=0.5), 2.0 * Matern(0.9, nu=2.5), LONG):
        space = state_space(kernel)
        rows = Rows(whole, space, Sites(tau, nu))
        rows.run(ahead=False)
        report = rows.report()
        ends = [(0, 17), (17, 18), (18, 44), (44, 60)]
        parts = [whole.part(slice(*end)) for end in ends]
        sites = [Sites(tau[a:b].copy(), nu[a:b].copy()) for a, b in ends]
        moves = [folded(Rows(p, space, s)) for p, s in zip(parts, sites, strict=True)]
        total = 0.0
        edges = messages_between(space, float(t[0]), moves)
        for (a, b), part, own, edge in zip(ends, parts, sites, edges, strict=True):
            piece = Rows(part, space, own, edge)
            piece.run(ahead=False)
            # Closed recursions both: they differ by roundings.
            np.testing.assert_allclose(piece.report(), report[a:b], rtol=1e-11, atol=1e-12)
            total = total + piece.slope()
        np.testing.assert_allclose(total, rows.slope(), rtol=1e-9, atol=1e-9)


def test_evidence_of_blocks_has_the_gradient_of_one_piece():
    t, _, real = series(1000, seed=3)
    kernel = ConstantKernel(2.0) * Matern(1.0, nu=1.5) + WhiteKernel(0.01)
    theta = np.append(kernel.theta, np.log(0.4))
    found = []
    with places.sweeping(1000, 2, None, 3) as sweeper:
        for how in ({}, {"sweeper": sweeper}):
            family = SeriesFamily(kernel, t[:, None], np.zeros(t.size), **how)
            projector = Projector("student-t(nu=6, scale=0.4)", "ep")
            objective = SeriesObjective(family, real, projector, 1e-11, 500, None, ("scale",), None)
            objective.tolerance = lambda: 1e-11
            found.append(objective(theta))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-11)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-7, atol=1e-7)


def test_what_is_refused():
    t, y, _ = series(40)
    for options, words in [
        ({"n_jobs": 0}, "n_jobs must be"),
        ({"n_jobs": 2, "scheduler": "tcp://h:1"}, "leave them out"),
        ({"scheduler": "nowhere"}, "must be an address"),
        ({"blocks": 2}, "blocks are for n_jobs"),
        ({"n_jobs": 2, "blocks": 0}, "blocks must be"),
    ]:
        with pytest.raises(InputError, match=words):
            infer_series(t, y, KERNEL, **options)
    X = np.column_stack([t, t])
    with pytest.raises(InputError, match="scheduler is for a series"):
        GPClassifier(scheduler="tcp://h:1").fit(X, y)
    with pytest.raises(InputError, match="address, got 3"):
        GPClassifier(scheduler=3).fit(X, y)


def test_rows_appended_cost_their_window():
    """Rows one by one and in batches: the answer of all rows, from the last few hundred."""
    t, y, real = series(6000, seed=4)
    options = {"tol": 1e-9, "max_sweeps": 500}
    student = likelihoods.get("student-t", nu=3.0, scale=0.5)
    for given, kernel, likelihood in ((y, KERNEL, "probit"), (real, KERNEL, student)):
        turn = np.random.default_rng(0).permutation(5000)
        post = infer_series(t[turn], given[turn], kernel, likelihood, "ep", **options)
        swept = []
        for end in (5001, 5002, 5400, 6000):
            begin = post.given
            later = given[begin:end].copy()
            later[:1] = np.nan if end == 5400 else later[:1]
            post = post.extend(t[begin:end], later)
            swept.append(post.swept - (end - begin))
            assert post.given == end
        assert post.converged
        assert max(swept) < 2500
        dropped = given.copy()
        dropped[:5000], dropped[5002] = given[turn], np.nan
        at = np.concatenate([t[turn], t[5000:]])
        fresh = infer_series(at, dropped, kernel, likelihood, "ep", **options)
        assert worst(pickle.loads(pickle.dumps(post)), fresh) < 1e-7, likelihood
        np.testing.assert_array_equal(post.rows, fresh.rows)
        new = np.array([-1.0, 100.0, t[-1] + 0.1])
        np.testing.assert_allclose(post.predict(new), fresh.predict(new), atol=1e-7)
    # A constant never forgets: every row is swept, to the same answer.
    post = infer_series(t[:1000], y[:1000], LONG, method="ep", **options)
    post = post.extend(t[1000:1010], y[1000:1010])
    assert post.swept == 1010
    assert worst(post, infer_series(t[:1010], y[:1010], LONG, method="ep", **options)) < 1e-7
    # In between: all rows, from their sites.
    assert post.extend([3.0], [1.0]).swept == 1011


def test_rows_appended_that_do_not_settle_say_so():
    """Also where precisions are held at zero: one sweep of two outliers each way is not enough."""
    t = np.arange(40.0)
    kernel = 9.0 * Matern(3.0, nu=1.5)
    post = infer_series(t, np.sin(t), kernel, "student-t(nu=4, scale=0.3)", "ep")
    one = replace(post, limits=post.limits._replace(sweeps=1))
    later = one.extend([40.0, 40.5, 41.0, 41.5], [6.0, -6.0, 6.0, -6.0])
    assert (post.status, later.status) == ("converged", "not converged")
    assert later.held > 0
    assert later.fixed_points == ()


@pytest.mark.slow
def test_a_killed_worker_costs_its_block(tmp_path, monkeypatch):
    """Two processes; one is killed between rounds, a new one comes; a fit goes through them too."""
    t, y, _ = series(200_000)
    whole = infer_series(t, y, KERNEL, method="ep", **TIGHT)
    with RealCluster(tmp_path, workers=2) as cluster:
        cluster.wait_for_workers(2)
        options = {"scheduler": cluster.address, "blocks": 20, "method": "ep"}
        infer_series(t[:2000], y[:2000], KERNEL, **options)

        def kill():
            time.sleep(0.6)
            cluster.workers[0].kill()
            cluster.add_worker()

        killer = threading.Thread(target=kill)
        killer.start()
        found = infer_series(t, y, KERNEL, **TIGHT, **options)
        killer.join()
        assert worst(found, whole) < 1e-9
        assert cluster.workers[0].wait(timeout=10.0) != 0
        model = GPClassifier(KERNEL, method="ep", scheduler=cluster.address)
        model.fit(t[:2000, None], y[:2000])
    alone = GPClassifier(KERNEL, method="ep").fit(t[:2000, None], y[:2000])
    evidence = alone.log_marginal_likelihood_value_
    assert model.log_marginal_likelihood_value_ == pytest.approx(evidence, rel=1e-8)
