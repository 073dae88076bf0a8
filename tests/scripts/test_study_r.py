"""Peers of R: log densities that are computed here equal R's own, and forecasts a closed form."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from scripts import records
from scripts.command_line import Failure
from scripts.reports import findings, kinds
from scripts.studies import forecasts, held_out, kinds_models, r
from scripts.studies.forecasts import Set

ROWS = 160


def needs(packages):
    """Skip where R or one of its packages is missing."""
    if not r.has(packages):
        pytest.skip(f"R with {packages} is not installed")


def part(y):
    """The first fold of four features, of which the last one is the sum of two others."""
    return next(iter(held_out.parts(features(), y)))


def features():
    X = np.random.default_rng(0).normal(size=(ROWS, 3))
    return np.column_stack([X, X[:, 0] + X[:, 1]])


def observations(family):
    """Observations of one family, whose location is a curve of two features."""
    rng, X = np.random.default_rng(1), features()
    location = 0.5 * X[:, 0] + np.sin(2.0 * X[:, 1])
    if family in ("clm", "ocat"):
        return np.digitize(location + rng.logistic(size=ROWS), [-1.0, 0.0, 1.5]).astype(float)
    if family in ("nb", "ziP"):
        return rng.negative_binomial(2, 2.0 / (2.0 + np.exp(location))).astype(float)
    if family == "Gamma":
        return rng.gamma(3.0, np.exp(location) / 3.0)
    time, end = np.exp(location) * rng.exponential(size=ROWS), rng.exponential(4.0, size=ROWS)
    return np.column_stack([np.minimum(time, end), time < end])


@pytest.mark.parametrize(
    ("function", "family"),
    [
        *(("survreg", "weibull"), ("survreg", "loglogistic"), ("survreg", "lognormal")),
        *(("gam", "cnorm"), ("clm", "clm"), ("gam", "ocat"), ("gam", "nb"), ("gam", "ziP")),
        ("gam", "Gamma"),
    ],
)
def test_log_densities_of_training_rows_sum_to_the_log_likelihood_of_r(function, family):
    needs({"clm": "ordinal", "gam": "mgcv"}.get(function, "survival"))
    rows = part(observations(family))
    found = kinds_models.fitted(function, rows, *([] if function == "clm" else [family]))
    location = found["location"][: len(rows.y)]
    density = kinds_models.log_density(family, rows.y, location, found["parameters"])
    # The sums have the rounding of some hundred terms.
    np.testing.assert_allclose(density.sum(), found["loglik"][0], rtol=1e-10)


def test_survreg_is_at_the_maximum_of_the_likelihood():
    """The Weibull likelihood is written again, and maximised by SciPy."""
    needs("survival")
    rows = part(observations("weibull"))
    X = np.column_stack([np.ones(len(rows.y)), rows.scaled[:, :3]])
    log_time, seen = np.log(rows.y[:, 0]), rows.y[:, 1]

    def minus_log_likelihood(theta):
        z = (log_time - X @ theta[:4]) / np.exp(theta[4])
        return -np.sum(seen * (z - theta[4] - log_time) - np.exp(z))

    best = optimize.minimize(minus_log_likelihood, np.zeros(5), method="BFGS")
    found = kinds_models.fitted("survreg", rows, "weibull")
    assert found["loglik"][0] == pytest.approx(-best.fun, rel=1e-9)
    # The gradient of BFGS is numerical: 1e-5 of log scale.
    assert found["parameters"][0] == pytest.approx(np.exp(best.x[4]), rel=1e-4)


def test_concordance_of_cox_is_that_of_r():
    needs("survival")
    rows = part(observations("weibull"))
    scores = kinds_models.Peer("coxph")(rows)
    expected = kinds_models.fitted("coxph", rows)["concordance"][0]
    assert scores["concordance"] == pytest.approx(expected, rel=1e-12)
    assert "density" not in scores


def test_densities_of_held_out_rows_are_of_held_out_rows():
    needs("ordinal")
    rows = part(observations("clm"))
    found = kinds_models.fitted("clm", rows)
    ends = np.concatenate([[-np.inf], found["parameters"], [np.inf]])
    p = np.diff(stats.logistic.cdf(ends - found["location"][len(rows.y) :, None]), axis=1)
    picked = p[np.arange(len(rows.other)), rows.other.astype(int)]
    assert kinds_models.Peer("clm")(rows)["density"] == pytest.approx(
        np.log(picked).mean(), rel=1e-12
    )


def test_tails_of_levels_do_not_cancel():
    """P(level 3) is far above the thresholds: exp(-(60 - 0)) for a location of -60."""
    y, location = np.array([0.0, 2.0]), np.array([60.0, -60.0])
    found = kinds_models.log_density("clm", y, location, np.array([0.0, 0.0]))
    np.testing.assert_allclose(found, -60.0, rtol=1e-12)


def test_quantiles_of_forecasts_are_of_the_normal_distribution_of_a_mean():
    """Arima without orders is a mean with normal errors of the residuals' deviation."""
    needs("forecast")
    y = np.random.default_rng(2).normal(5.0, 2.0, size=40)
    one = Set(y, np.datetime64("1990", "Y"), 1, 1, 3)
    quantiles, cpu = forecasts.ByR("Arima")(one, 3)
    levels = np.concatenate([np.arange(1, 100) / 100.0, [0.025, 0.1, 0.9, 0.975]])
    exact = stats.norm(y.mean(), y.std(ddof=1)).ppf(levels)
    # R maximises the likelihood of the mean numerically.
    np.testing.assert_allclose(quantiles, np.tile(exact, (3, 1)), rtol=2e-5)
    assert cpu > 0.0


def test_scores_of_a_window_are_the_crps_of_a_normal_distribution():
    """The CRPS of N(0, 1) at y is y (2 F(y) - 1) + 2 f(y) - 1 / sqrt(pi)."""
    y = np.array([0.0, 0.0, 0.3, -1.2, 0.8])
    one = Set(y, np.datetime64("1990", "Y"), 1, 1, 1)
    levels = np.concatenate([np.arange(1, 100) / 100.0, [0.025, 0.1, 0.9, 0.975]])
    found = forecasts.scored(one, lambda *_: forecasts.Timed(stats.norm.ppf(levels)[None], 2.5))
    last = y[-3:]
    exact = last * (2 * stats.norm.cdf(last) - 1) + 2 * stats.norm.pdf(last) - 1 / np.sqrt(np.pi)
    # The integrand is 0 at both ends, so the mean of 99 levels is 100/99 of the trapezoidal rule,
    # whose error is 9e-5 here, with five digits kept.
    assert 0.99 * found["crps"] == pytest.approx(exact.mean(), rel=4e-4)
    assert (found["within80"], found["cpu"]) == (1.0, 2.5)


def test_missing_packages_are_said_and_skipped(tmp_path, capsys):
    kept = held_out.Records(tmp_path / "kept.jsonl", "set model fold")
    absent = r.run
    judges = {"absent": lambda part: absent("", "noSuchPackage", pd.DataFrame()), "here": dict}
    held_out.fill(kept, "a", [{}, {}], judges, {})
    assert capsys.readouterr().out.count("absent is left out: R with noSuchPackage") == 1
    assert [(key.model, key.fold) for key in kept.records] == [("here", 0), ("here", 1)]


def test_errors_of_r_are_passed_on():
    needs("stats")
    with pytest.raises(Failure, match="no luck"):
        r.run('run <- function() stop("no luck")', "stats", pd.DataFrame({"x": [1.0]}))


def test_numbers_of_r_keep_all_digits():
    needs("stats")
    script = "run <- function() list(root = sqrt(d$x), none = NA, named = arguments[1] == 'b')"
    found = r.run(script, "stats", pd.DataFrame({"x": [2.0, 3.0]}), "b")
    np.testing.assert_array_equal(found["root"], np.sqrt([2.0, 3.0]))
    assert np.isnan(found["none"]).all()


@pytest.fixture
def of_kinds(tmp_path, monkeypatch):
    """Records of two sets, of two folds each."""
    densities = {
        "GPSurvival, Weibull": (-2.0, -3.0),
        "GPSurvival, log-logistic": (-2.0, -3.5),
        "GPSurvival, Weibull, linear plus Matérn, priors": (-2.0, -2.75),
        "survival survreg, Weibull": (-2.0, -2.5),
        "survival coxph": None,
        "lifelines WeibullAFTFitter": (-2.0, -2.625),
    }
    rows = [
        {"set": name, "model": model, "fold": fold, "rows": 9, "cpu": 1.0 + fold}
        | ({"concordance": 0.5 + fold / 4.0} if densities[model] is None else {})
        | ({} if densities[model] is None else {"density": shift + densities[model][fold]})
        for name, shift in (("a (times)", 0.0), ("b (times)", 1.0))
        for model in densities
        for fold in (0, 1)
    ]
    (tmp_path / "kinds.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr(records, "RESULTS", tmp_path)


def test_the_best_of_each_side_is_by_mean_log_density(of_kinds):
    assert kinds.best().splitlines()[2] == (
        "| a (times) | 9 | -2.500 | -2.375 | -2.250 | -2.312 "
        "| survival survreg, Weibull | lifelines WeibullAFTFitter |"
    )


def test_models_have_their_mean_gap_to_the_best(of_kinds):
    rows = {row.split(" | ")[1]: row.split(" | ")[2:] for row in kinds.models().splitlines()[2:]}
    assert rows["GPSurvival, log-logistic"] == ["2", "0.500", "0.500", "", "1.50 |"]
    assert rows["survival coxph"] == ["2", "", "", "0.625", "1.50 |"]


def test_losses_are_named_with_their_gap(of_kinds):
    found = findings.families_losses().splitlines()
    assert len(found) == 2
    assert "survival survreg, Weibull is ahead by 0.250, and ahead of the other options" in found[0]
