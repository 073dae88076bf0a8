"""GPSurvival: against integrals, pairs counted one by one, and times as people have them."""

import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPRegressor, GPSurvival
from qpruntime.estimators.survival import concordance
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 6.0, (120, 1))
T = np.exp(1.0 + np.sin(X[:, 0]) + 0.4 * np.log(RNG.exponential(size=120)))
END = RNG.uniform(1.0, 10.0, 120)
SEEN, TIME = T <= END, np.minimum(T, END)
SPANS = np.column_stack([TIME, np.where(SEEN, TIME, np.inf)])
NEW = np.array([[1.5], [4.5], [9.0]])
KERNEL = ConstantKernel(0.6) * RBF(1.3, "fixed")


def test_curves_and_medians_are_integrals_over_f():
    model = GPSurvival(KERNEL, method="ep").fit(X, TIME, SEEN)
    assert model.parameters_["scale"] == pytest.approx(0.4, abs=0.08)
    mean, variance = model.latent(NEW)
    z = np.linspace(-9.0, 9.0, 20_001)
    w = np.exp(-0.5 * z * z) / np.exp(-0.5 * z * z).sum()
    times, scale = np.array([0.0, 0.7, 3.0]), model.parameters_["scale"]
    found, median = model.predict_survival(NEW, times), model.predict(NEW)
    density = model.predict_log_density(NEW, [2.0, 2.0, 5.0], [True, False, True])
    for i in range(3):
        given = stats.weibull_min(1.0 / scale, scale=np.exp(mean[i] + np.sqrt(variance[i]) * z))
        np.testing.assert_allclose(found[i], [w @ given.sf(t) for t in times], rtol=1e-9)
        assert w @ given.sf(median[i]) == pytest.approx(0.5, rel=1e-8)
        wanted = (given.pdf(2.0), given.sf(2.0), given.pdf(5.0))[i]
        assert density[i] == pytest.approx(np.log(w @ wanted), abs=1e-9)
    # Times as people have them are one.
    both = np.zeros(120, dtype=[("death", "?"), ("days", "f8")])
    both["death"], both["days"] = SEEN, TIME
    for y in (both, both[["days", "death"]], SPANS):
        again = GPSurvival(KERNEL, method="ep").fit(X, y)
        np.testing.assert_allclose(again.predict(NEW), model.predict(NEW), rtol=1e-10)
        assert again.score(X, y) == model.score(X, TIME, SEEN)


@pytest.mark.slow
@every_case("likelihood", ["weibull", "log-normal", "log-logistic"])
def test_another_unit_of_time_changes_nothing(likelihood):
    first = GPSurvival(KERNEL, likelihood=likelihood, method="ep").fit(X, TIME, SEEN)
    # Sites settle to 1e-6.
    for unit in (1e-6, 1e9):
        other = GPSurvival(KERNEL, likelihood=likelihood, method="ep").fit(X, unit * TIME, SEEN)
        assert other.mean_ - first.mean_ == pytest.approx(np.log(unit), abs=1e-8)
        np.testing.assert_allclose(other.predict(NEW), unit * first.predict(NEW), rtol=1e-5)
        # A density of times, so that each event has the unit; censoring is a probability.
        gap = first.log_marginal_likelihood_value_ - other.log_marginal_likelihood_value_
        assert gap == pytest.approx(SEEN.sum() * np.log(unit), abs=1e-5)


def test_events_without_censoring_are_those_of_a_regression():
    """Log-normal times are normal noise on their logarithms."""
    kernel = ConstantKernel(0.6, "fixed") * RBF(1.3, "fixed")
    options = {"optimize": False, "method": "ep"}
    times = GPSurvival(kernel, likelihood="log-normal(scale=0.5)", **options).fit(X, T)
    assert times.mean_ == pytest.approx(np.log(T).mean(), abs=0.3)
    plain = GPRegressor(kernel, likelihood="gaussian(scale=0.5)", normalize_y=False, **options)
    plain.fit(X, np.log(T) - times.mean_)
    wanted = plain.predict_quantiles(NEW, [0.1, 0.9]) + times.mean_
    np.testing.assert_allclose(np.log(times.predict_quantiles(NEW, [0.1, 0.9])), wanted, rtol=1e-6)


@pytest.mark.slow
def test_intervals_are_calibrated():
    """Times seen at inspections alone: the truth is in central intervals as often as they say."""
    rng = np.random.default_rng(5)

    def drawn(n):
        new = rng.uniform(0.0, 6.0, (n, 1))
        return new, np.exp(1.0 + np.sin(new[:, 0]) + 0.4 * np.log(rng.exponential(size=n)))

    old, times = drawn(400)
    end, late = rng.uniform(1.0, 10.0, 400), np.floor(2.0 * times) / 2.0
    seen = np.column_stack([late, late + 0.5])
    spans = np.where((times <= end)[:, None], seen, np.column_stack([end, np.full(400, np.inf)]))
    model = GPSurvival(KERNEL, method="ep").fit(old, spans)
    assert model.parameters_["scale"] == pytest.approx(0.4, abs=0.06)
    new, truth = drawn(2000)
    low, high = model.predict_interval(new, 0.8).T
    # 2000 draws are off by 0.009, one deviation; the fit by as much.
    assert ((truth >= low) & (truth <= high)).mean() == pytest.approx(0.8, abs=0.04)


def test_concordance_counts_pairs():
    rng = np.random.default_rng(1)
    spans = rng.integers(1, 9, (30, 2)).astype(float)
    spans.sort(axis=1)
    spans[::3, 1] = np.inf
    guess = rng.integers(0, 6, 30).astype(float)
    right = total = 0.0
    for i in range(30):
        for j in range(30):
            censored = spans[j, 1] > spans[j, 0]
            if spans[i, 1] < spans[j, 0] or (spans[i, 1] == spans[j, 0] and censored):
                total += 1.0
                right += 1.0 if guess[i] < guess[j] else 0.5 * (guess[i] == guess[j])
    assert concordance(spans, guess) == pytest.approx(right / total, rel=1e-14)


@every_case(
    ("y", "event", "words"),
    [
        (-TIME, SEEN, "0 <= first"),
        (TIME, SEEN[:5], "120 booleans"),
        (TIME, TIME, "120 booleans"),
        (SPANS, SEEN, "leave|with first and last"),
        (SPANS[:, ::-1], None, "0 <= first <= last"),
        (TIME[:, None, None], None, "shape"),
        (np.zeros(120), SEEN, "event at 0 has no logarithm"),
        (np.column_stack([TIME + 1.0, SEEN]), None, r"fit\(X, times, event=seen\)"),
    ],
)
def test_refusals(y, event, words):
    refuses(words, GPSurvival().fit, X, y, event)


def test_other_likelihoods_are_refused():
    refuses("likelihood must be one of", GPSurvival(likelihood="gamma").fit, X, TIME)
    refuses("use GPSurvival", GPRegressor(likelihood="weibull").fit, X, TIME)
