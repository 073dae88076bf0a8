"""Kernels of few rows before all rows: which one is taken, and how far its variance moves."""

import logging
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from qpruntime import GPClassifier
from qpruntime.learning.initialisation import default_start
from qpruntime.learning.inputs import Inputs
from qpruntime.learning.model_selection import select
from qpruntime.learning.model_selection.budget import Budget
from qpruntime.learning.model_selection.candidates import (
    Candidate,
    KernelShape,
    Trial,
    combine_candidates,
    rival_candidate,
)
from qpruntime.learning.model_selection.inducing_growth import ScoredEngine
from qpruntime.learning.model_selection.select import (
    KernelCandidate,
    compare_kernels,
    tune_variance,
)
from qpruntime.learning.scaling import Units
from qpruntime.learning.settings import Data, settings_of
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case

BUDGET, UNITS = Budget(None, 100), Units(np.zeros(2), np.ones(2))
NOISE = np.random.default_rng(0).standard_normal(4000)
RNG = np.random.default_rng(1)
ROUGH = RNG.random((400, 2))
STEPS = (np.floor(6.0 * ROUGH).sum(axis=1) % 2 > 0.0) ^ (RNG.random(400) < 0.05)


class Rows:
    """Rows left out that like a variance, and say so to within the noise of 4000 of them."""

    def __init__(self, liked: float, level: float = 0.0, seconds: float = 100.0, turn: int = 0):
        self.liked, self.level = liked, level
        self.noise = 0.3 * np.roll(NOISE, turn)
        self.budget = Budget(seconds, 4000)
        self.data = SimpleNamespace(y=np.zeros(4000))
        self.asked: list[float] = []

    def run(self, kernel, projector, m, label, previous):
        self.asked.append(kernel.k2.k1.constant_value)
        off = math.log(self.asked[-1] / self.liked)
        densities = self.level - 0.01 * off**2 + self.noise + 0.001 * off * NOISE[::-1]
        self.budget.spend(1e10)
        engine = SimpleNamespace(Z=np.empty((m, 1)), release=lambda: None)
        return ScoredEngine(engine, densities, None)


def kernel(variance: float):
    return ConstantKernel(1.0) + ConstantKernel(variance, (1e-3, 1e3)) * Matern(0.5)


@every_case(
    "liked, ends", [(1.0, 1.0), (1.6, 1.0), (2.2, 3.0), (1e2, 27.0), (0.1, 1 / 9), (1e-9, 1 / 27)]
)
def test_a_variance_moves_while_rows_left_out_gain(liked, ends):
    case = KernelCandidate(Rows(liked), kernel(1.0), None, "")
    begun = case.search.run(case.kernel, None, 300, "", None)
    found, settled = tune_variance(case, begun)
    assert found.k2.k1.constant_value == pytest.approx(ends)
    assert settled.score >= begun.score
    assert len(case.search.asked) <= 1 + 1 + 3


def test_a_variance_stays_within_its_bounds_and_the_budget():
    case = KernelCandidate(Rows(1e9), kernel(500.0), None, "")
    begun = case.search.run(case.kernel, None, 300, "", None)
    assert tune_variance(case, begun)[0].k2.k1.constant_value == pytest.approx(500.0)
    poor = KernelCandidate(Rows(1e9, seconds=0.5), kernel(1.0), None, "")
    assert tune_variance(poor, begun)[0].k2.k1.constant_value == pytest.approx(1.0)
    assert poor.search.asked == []
    # It loses by .003, which is less than two standard errors of .3 sqrt(2 / 4000).
    level = 0.01 * math.log(9.0) ** 2 - 0.003
    cases = [
        KernelCandidate(Rows(1.0), kernel(1.0), None, "a"),
        KernelCandidate(Rows(9.0, level, turn=7), kernel(1.0), None, "b"),
    ]
    number, found, settled = compare_kernels(cases)
    assert number == 1
    assert found.k2.k1.constant_value == pytest.approx(9.0)
    assert settled.score == pytest.approx(level + 0.3 * NOISE.mean())
    cases[1] = KernelCandidate(Rows(9.0, level - 0.02, turn=7), kernel(1.0), None, "b")
    assert compare_kernels(cases)[0] == 0


@every_case("second, wins", [(-0.05, 0), (0.0, 0), (0.05, 1)])
def test_the_first_is_preferred(second, wins):
    cases = [
        KernelCandidate(Rows(1.0), kernel(1.0), None, "a"),
        KernelCandidate(Rows(1.0, second), kernel(1.0), None, "b"),
    ]
    assert compare_kernels(cases)[0] == wins


def made_few(patch):
    """More than 80 rows are many."""
    patch.setattr(select, "DENSE_ROW_LIMIT", 80)
    patch.setattr(select, "FIRST_INDUCING", 40)


@pytest.fixture
def few_dense(monkeypatch):
    made_few(monkeypatch)


OPTIONS = {"inducing": "judged", "random_state": 0}


@pytest.fixture(scope="module")
def plain():
    """A fit that nobody disturbs, and which therefore does not begin again."""
    told, handler = [], logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    try:
        with pytest.MonkeyPatch.context() as patch:
            made_few(patch)
            model = GPClassifier(**OPTIONS).fit(ROUGH[:300], STEPS[:300])
    finally:
        logging.getLogger().removeHandler(handler)
    assert "begun again" not in "".join(told)
    return model


def lowered(choose, *factors):
    """Choices whose variances are too small by these factors, one after the other."""
    left = list(factors)

    def choose_low(*arguments, **keywords):
        found, factor = choose(*arguments, **keywords), left.pop(0) if left[1:] else left[0]

        def low(one):
            theta = one.fitted.theta.copy()
            theta[1] -= math.log(factor)
            optimum = replace(one.fitted.optimum, theta=theta)
            return replace(one, fitted=replace(one.fitted, optimum=optimum))

        lists = tuple(tuple(map(low, candidates)) for candidates in found.processes)
        return replace(found, processes=lists)

    return choose_low


def loss(model):
    return -np.log(np.where(STEPS[300:], *model.predict_proba(ROUGH[300:]).T[::-1])).mean()


@pytest.mark.slow
def test_a_start_with_a_wrong_variance_ends_alike(plain, few_dense, monkeypatch):
    """Fifty times less than what the evidence of few rows says; 9 is what moves mend of it."""
    monkeypatch.setattr(select, "select_kernel", lowered(select.select_kernel, 50.0))
    mended = GPClassifier(**OPTIONS).fit(ROUGH[:300], STEPS[:300])
    monkeypatch.setattr(select, "_MAX_VARIANCE_STEPS", 0)
    left = GPClassifier(**OPTIONS).fit(ROUGH[:300], STEPS[:300])

    assert loss(mended) < loss(left) - 0.01
    assert loss(mended) < loss(plain) + 0.01


@pytest.mark.slow
@every_case("factors, worse", [((1e4, 1.0), 0.02), ((1e4, 1e3, 1.0), 1.0)])
def test_rows_that_predict_worse_than_the_first_begin_again_once(
    plain, few_dense, monkeypatch, caplog, factors, worse
):
    caplog.clear()
    monkeypatch.setattr(select, "_MAX_VARIANCE_STEPS", 0)
    monkeypatch.setattr(select, "select_kernel", lowered(select.select_kernel, *factors))
    model = GPClassifier(**OPTIONS).fit(ROUGH[:300], STEPS[:300])
    assert "begun again with other rows drawn" in caplog.text
    assert loss(model) < loss(plain) + worse
    # Stages of both draws, and of no third.
    first, *_, last = model.stages_
    words = [stage.candidate for stage in model.stages_]
    assert words.count(first.candidate) == 2 * [s.candidate for s in plain.stages_].count(words[0])
    assert "points" in last.candidate


@every_case("loss_of_a_row, again", [(5e-4, False), (2e-3, True), (-2e-3, False)])
def test_tiny_losses_of_all_rows_are_no_reason_to_begin_again(loss_of_a_row, again):
    """All are far more than two standard errors: 400 rows lose nearly the same."""
    noise = 1e-4 * np.random.default_rng(0).standard_normal(400)
    context = SimpleNamespace(
        subsets=SimpleNamespace(has_holdout=True, order=np.arange(900), holdout=slice(500, 900)),
        budget=Budget(None, 900),
    )
    data = SimpleNamespace(groups=None, weights=None)
    candidate = SimpleNamespace(holdout_densities=-0.7 + loss_of_a_row + noise)
    posterior = SimpleNamespace(Z=np.zeros((30, 2)), loo=lambda rows: np.full(rows.size, -0.7))
    assert select._loses_to_holdout(data, posterior, context, [candidate]) == again


@pytest.mark.slow
def test_of_many_rows_some_settle_the_contest(few_dense, monkeypatch):
    monkeypatch.setattr(select, "COMPARISON_ROWS", 150)
    model = GPClassifier(inducing="judged", random_state=0).fit(ROUGH, STEPS)
    settled = [stage.rows for stage in model.stages_ if "inducing" in stage.candidate]
    assert 150 in settled
    assert settled[-1] == 400
    assert sorted(settled) == settled
    assert len(model.predict_proba(ROUGH)) == 400


@pytest.mark.slow
def test_ranks_and_features_both_reach_all_rows(few_dense):
    model = GPClassifier(inducing="judged", random_state=0).fit(ROUGH, STEPS)
    words = [s.candidate for s in model.stages_ if "inducing" in s.candidate]
    assert any("ranks" in one for one in words)
    assert any("ranks" not in one for one in words)
    three = np.digitize(ROUGH[:, 0] + 0.1 * NOISE[:400], [0.3, 0.6])
    model = GPClassifier(inducing="judged", random_state=0).fit(ROUGH, three)
    words = [s.candidate for s in model.stages_ if "points" in s.candidate]
    assert len({"ranks" in one for one in words if "Matérn" in one}) <= 1
    assert model.score(ROUGH, three) > 0.7


def refined(climbed):
    start = climbed.start.refined(climbed.theta)
    return replace(climbed, start=start, optimum=replace(climbed.optimum, theta=start.thetas[0]))


def data_of(X, y):
    return Data(Inputs(X), np.where(y, 1.0, -1.0), Projector("probit", "ep"), np.zeros(len(y)))


@every_case("each, nu, made", [(0.1, 0.1, True), (-0.1, 0.1, False), (0.1, -0.1, False)])
def test_length_scales_and_roughness_that_gain_alone_are_joined(each, nu, made):
    smooth, rough = KernelShape(True, 2.5), KernelShape(True, 0.5)
    data, settings = data_of(ROUGH[:100], STEPS[:100]), settings_of(GPClassifier())
    trial = Trial(data, settings, BUDGET, slice(0, 0))
    commons = {
        shape: trial.optimise(default_start(UNITS, nu=shape.nu), 100, 1e-3, 5)
        for shape in (smooth, rough)
    }
    one = Candidate(commons[smooth], smooth, False, commons[smooth])
    each_of_one = replace(one, fitted=refined(commons[smooth]), by_feature=True)
    candidates = [
        one,
        rival_candidate(trial, commons[smooth], smooth, each_of_one, 100),
        Candidate(commons[rough], rough, False, commons[rough]),
    ]
    densities = {0: NOISE, 1: NOISE + each, 2: NOISE + nu}
    found = combine_candidates({smooth: trial, rough: trial}, candidates, densities, 100)
    assert (found is not None) == made
    if found is not None:
        assert (found.shape, found.by_feature) == (rough, True)
        assert found.fitted.kernel.k2.k2.nu == 0.5
        assert len(found.fitted.kernel.k2.k2.length_scale) == 2
        # One that is there is not made again.
        again = [*candidates, found]
        assert combine_candidates({rough: trial}, again, {**densities, 3: NOISE}, 100) is None
