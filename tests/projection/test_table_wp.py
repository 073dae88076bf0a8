"""Tables of L_p projections: against quadrature, in inference, certified, and refused in words."""

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from qpruntime import InputError, TableError, _formatting, infer, likelihoods, open_table, project
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import interpolation
from qpruntime.projection.open import shipped_path
from qpruntime.projection.projector import Projector, project_arrays
from qpruntime.projection.table import Table
from qpruntime.table_format.metadata import Metadata
from tablegen import build
from tablegen.console import plot
from tablegen.second_rule import wp as second_wp
from tablegen.surfaces import build as tables
from tablegen.surfaces import errors as surface_errors
from tablegen.verify import verify
from tests.tools.cases import every_case, refuses

pytestmark = pytest.mark.usefixtures("few_points")


def log_prob(f, y, theta):
    x = -theta[0] * y * f
    return -x - math.log1p(math.exp(-x)) if x > 0.0 else -math.log1p(math.exp(x))


@cache  # compiled once
def graded(slope=1.7):
    options = {"theta": {"slope": slope}, "outcomes": [-1, 1], "log_concave": True}
    made = Likelihood.from_log_prob(log_prob, name="graded", **options)
    return replace(made, mirror=True)


RANGE = {"mu_range": (-1.4, 1.4), "log10_sigma_range": (-0.25, 0.02)}
TINY = {"mu_range": (-0.5, 0.5), "log10_sigma_range": (-0.1, 0.1)}


@pytest.fixture(scope="module")
def built(few_points, tmp_path_factory):
    path = tmp_path_factory.mktemp("wp") / "graded.h5"
    build(graded(), path, preset="surfaces", projection="wp", p=1.5, workers=2, **RANGE)
    return path


@pytest.fixture(scope="module")
def data():
    x = np.linspace(-3.0, 3.0, 12)
    K = np.exp(-0.5 * ((x[:, None] - x) / 0.6) ** 2)
    return K, np.where(np.sin(2.0 * x) > -0.2, 1.0, -1.0)


def test_lookups_equal_quadrature(built):
    metadata = open_table(built).metadata
    assert metadata.projection == {"name": "wp", "p": 1.5}
    assert tuple(metadata.surfaces) == interpolation.WP_NAMES
    errors = [metadata.certificate[name]["max_relative_error"] for name in metadata.surfaces]
    assert metadata.certificate["tolerance"] == 1e-6
    assert 1e-12 < max(errors) <= 1e-6
    assert open_table(built).likelihood.has_density is False
    rng = np.random.default_rng(3)
    mu, sigma = rng.uniform(-1.4, 1.4, 100), 10.0 ** rng.uniform(-0.25, 0.02, 100)
    y = rng.choice([-1.0, 1.0], 100)
    found = project_arrays(None, mu, sigma, y, "wp", built)
    exact = project_arrays(graded(), mu, sigma, y, "wp", p=1.5)
    assert found.inside.all()
    np.testing.assert_allclose(found.log_z, exact.log_z, rtol=1e-6, atol=1e-6)
    assert np.abs((found.mean - exact.mean) / exact.std).max() < 1e-6
    np.testing.assert_allclose(found.std, exact.std, rtol=1e-6)
    # Tables of EP and QP would be seen: both differ by more than ten times the tolerance.
    ep_mean, ep_std = project(graded(), mu, sigma, y, "ep")
    qp_std = project(graded(), mu, sigma, y, "qp", "exact")[1]
    assert np.abs(found.mean - ep_mean).max() > 1e-5
    assert np.abs(found.std / ep_std - 1.0).max() > 1e-5
    assert np.abs(found.std / qp_std - 1.0).max() > 1e-5
    star, inside = open_table(built).lookup(mu, sigma, y)
    np.testing.assert_array_equal(star, found.std)
    assert inside.all()


@pytest.mark.parametrize("p", [pytest.param(1.0, marks=pytest.mark.slow), 4.0])
def test_other_orders(tmp_path, p):
    path = tmp_path / "x.h5"
    options = {"projection": "wp", "p": p, "tolerance": 1e-4, "workers": 2, **TINY}
    build(graded(), path, preset="surfaces", **options)
    mu, sigma = np.linspace(-0.5, 0.5, 40), 10.0 ** np.linspace(-0.0999, 0.0999, 40)
    mean, std = project(None, mu, sigma, 1.0, "wp", path)
    exact_mean, exact_std = project(graded(), mu, sigma, 1.0, "wp", p=p)
    assert np.abs((mean - exact_mean) / exact_std).max() < 1e-4
    np.testing.assert_allclose(std, exact_std, rtol=1e-4)


@every_case("order", ["sequential", "parallel"])
def test_infer_equals_quadrature(built, data, order):
    """With the code at hand and without."""
    K, y = data
    kwargs = {"method": "wp", "order": order, "tol": 1e-9}
    exact = infer(K, y, graded(), p=1.5, **kwargs)
    for code in (None, graded()):
        found = infer(K, y, code, table=built, **kwargs)
        assert found.converged
        assert found.lookups.inside >= y.size
        assert found.lookups.outside == 0
        np.testing.assert_allclose(found.mean, exact.mean, atol=1e-5)
        np.testing.assert_allclose(found.variance, exact.variance, rtol=1e-5)
        np.testing.assert_allclose(found.sites.tau, exact.sites.tau, rtol=1e-5, atol=1e-5)
        assert found.log_evidence == pytest.approx(exact.log_evidence, rel=1e-5)


# --- the certificate


@every_case("p", [1.0, 1.5, 2.0, 4.0])
@every_case("name", ["probit", "student-t"])
def test_newton_steps_find_errors(name, p):
    """Where the projection is right the step is none; what is added to it comes back."""
    likelihood = likelihoods.get(name)
    rng = np.random.default_rng(7)
    mu, sigma, y = rng.uniform(-3, 3, 15), 10.0 ** rng.uniform(-0.3, 0.5, 15), np.ones(15)
    found = project_arrays(likelihood, mu, sigma, y, "wp", p=p)
    stored = np.stack([found.log_z, found.mean, found.std], 1)
    assert second_wp.errors(likelihood, p, mu, sigma, y, stored).max() < 1e-7
    wrong = stored + np.stack([np.full(15, 3e-5), 1e-6 * found.std, 0.0 * mu], 1)
    errors = second_wp.errors(likelihood, p, mu, sigma, y, wrong)
    np.testing.assert_allclose(errors[:, 0] * np.maximum(1, abs(stored[:, 0])), 3e-5, rtol=1e-5)
    assert (np.abs(np.log(errors[:, 1] / 1e-6)) < math.log(4.0)).all()
    assert np.median(errors[:, 1]) == pytest.approx(1e-6, rel=0.1)
    wrong = stored + np.stack([0.0 * mu, 0.0 * mu, 1e-6 * found.std], 1)
    errors = second_wp.errors(likelihood, p, mu, sigma, y, wrong)
    assert (np.abs(np.log(errors[:, 2] / 1e-6)) < math.log(4.0)).all()
    assert np.median(errors[:, 2]) == pytest.approx(1e-6, rel=0.1)


def test_verify_integrates_again(built, tmp_path):
    report = verify(built, likelihood=graded(), points=100, seed=3, workers=1)
    assert report.ok
    assert 0.0 < report.certificate["std_wp"]["max_relative_error"] <= 1e-6
    assert verify(built, points=100, seed=3, workers=1).certificate == {}
    # The surfaces of another order do not pass for this one's.
    table = open_table(built)
    other = replace(table.metadata, projection={"name": "wp", "p": 1.6})
    wrong = Table(table.path, other, table.likelihood, table.values)
    found = surface_errors.certify(
        wrong, graded(), run=lambda f, parts: [f(p) for p in parts], points=50
    )
    assert any("_wp" in problem for problem in surface_errors.problems(found, 1e-6))


# --- what is refused


def test_mismatches_say_what_to_build(built, data, tmp_path):
    K, y = data
    compact = shipped_path("probit")
    words = r"with p=1.5, not.*p=3: .*projection='wp', p=3.0\) in Python"
    refuses(words, infer, K, y, method="wp", p=3, table=built)
    for method in ("ep", "qp", "vb"):
        message = rf"not method .{method}.*preset='surfaces'\) in Python$"
        refuses(message, infer, K, y, method=method, table=built)
    with pytest.raises(InputError, match=r"serves QP, not method .wp.*--projection wp --p 1.5"):
        project("probit", 0.0, 1.0, 1, method="wp", p=1.5, table=compact)
    refuses('"wp" needs p', project, "probit", 0.0, 1.0, 1, method="wp", table=compact)
    refuses("weights and powers", infer, K, y, graded(), method="wp", table=built, power=0.5)
    with pytest.raises(TableError, match=r"outside the table.*projection='wp', p=1.5, mu_range="):
        project(graded(), 9.0, 1.0, 1, method="wp", table=built)
    refuses("no sigma", plot.plot, built, tmp_path / "x.svg")
    assert Projector(graded(), "wp", built).for_evidence().table is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"p": 1.5}, "--projection wp"),
        ({"projection": "wp"}, "needs its order"),
        ({"projection": "wp", "p": 0.5}, "p must be from 1"),
        ({"projection": "qp", "p": 1.5}, "projection"),
        ({"projection": "wp", "p": 1.5, "preset": "grid"}, "a grid has no such options"),
    ],
)
def test_options_that_make_no_sense(tmp_path, options, words):
    refuses(words, build, "probit", tmp_path / "x.h5", **{"preset": "surfaces", **options})
    assert list(tmp_path.iterdir()) == []


def test_metadata(built):
    metadata = open_table(built).metadata
    assert Metadata.from_json(metadata.to_json(), "x") == metadata
    document = json.loads(metadata.to_json())
    plain = document | {"surfaces": list(interpolation.NAMES), "projection": None}
    assert "projection" not in json.loads(Metadata.from_json(json.dumps(plain), "x").to_json())
    for wrong in (
        *({}, "wp", {"name": "wp"}, {"name": "lp", "p": 1.5}, {"name": "wp", "p": "1.5"}),
        *({"name": "wp", "p": True}, {"name": "wp", "p": 1e300}, {"name": "wp", "p": 0.9}),
        {"name": "wp", "p": 1.5, "q": 1},
    ):
        with pytest.raises(TableError, match="'projection'"):
            Metadata.from_json(json.dumps(document | {"projection": wrong}), "x")
    with pytest.raises(TableError, match="holds the surfaces"):
        tables.standin(replace(metadata, projection=None), "x")


@pytest.mark.slow
def test_command_line(tmp_path, monkeypatch, capsys):
    from tablegen.console.cli import main

    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    where = ["--mu-range", "-0.5", "0.5", "--log10-sigma-range", "-0.1", "0.1"]
    what = ["build", "--likelihood", "logistic", "--preset", "surfaces", *where]
    what += ["--projection", "wp", "--p", "1.5", "--tolerance", "1e-4"]
    assert main([*what, "--dry-run"]) == 0
    assert "logistic-wp-1_5.h5" in capsys.readouterr().out
    assert main([*what, "--workers", "1"]) == 0
    assert "wp, p = 1.5" in capsys.readouterr().out
    assert main(["verify", "logistic-wp-1_5", "--points", "50", "--workers", "1"]) == 0
    assert "of wp deviation" in capsys.readouterr().out
    assert _formatting.ending("surfaces", 2.0) == "-wp-2"
    mean, std = project("logistic", 0.1, 1.0, -1, method="wp", table="logistic-wp-1_5")
    exact = project("logistic", 0.1, 1.0, -1, method="wp", p=1.5)
    assert (mean, std) == (pytest.approx(exact[0], rel=1e-4), pytest.approx(exact[1], rel=1e-4))
