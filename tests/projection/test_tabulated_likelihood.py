"""Inference on a table of surfaces alone: against quadrature, without the code, and its errors."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy.interpolate import BSpline
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPClassifier, TableError, infer, likelihoods, open_table, project
from qpruntime._pointers import SPLIT, Pointer
from qpruntime._validation import finite
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import interpolation
from qpruntime.projection.projector import Projector, project_arrays
from qpruntime.projection.tabulated_likelihood import difference, known, standin
from qpruntime.table_format.metadata import Metadata
from tablegen import build
from tests.tools.cases import every_case, refuses
from tests.tools.commands import python
from tests.tools.surface_models import cloglog, gumbel, ordinal

pytestmark = pytest.mark.usefixtures("few_points")
#: Of all tables built here; sites and evidence then agree ten times better than 1e-6.
TOLERANCE = 1e-7


@pytest.fixture(scope="module")
def graded(few_points, tmp_path_factory):
    """Path of a table of the ordinal likelihood: mu -4 to 4, log10 sigma -1 to 0.5."""
    path = tmp_path_factory.mktemp("surfaces") / "ordinal.h5"
    build(ordinal(), path, mu_range=(-4, 4), log10_sigma_range=(-1, 0.5), tolerance=TOLERANCE)
    return path


@pytest.fixture(scope="module")
def links(few_points, tmp_path_factory):
    path = tmp_path_factory.mktemp("surfaces") / "links.h5"
    build(cloglog(), path, mu_range=(-2, 2), log10_sigma_range=(-0.7, 0.3), tolerance=TOLERANCE)
    return path


@pytest.fixture(scope="module")
def skewed(few_points, tmp_path_factory):
    """Paths of two tables of one likelihood: over mu - y, and with a third axis."""
    directory = tmp_path_factory.mktemp("surfaces")
    kwargs = {"log10_sigma_range": (-0.7, 0.1), "tolerance": TOLERANCE}
    build(gumbel(), directory / "location.h5", mu_range=(-4, 4), **kwargs)
    build(gumbel(False), directory / "volume.h5", mu_range=(-2, 2), **kwargs)
    return directory / "location.h5", directory / "volume.h5"


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    x = np.sort(rng.uniform(-3.0, 3.0, 40))
    K = np.exp(-0.5 * (x[:, None] - x) ** 2)
    f = np.sin(2.0 * x)
    grades = np.digitize(f + 0.5 * rng.standard_normal(40), [-0.5, 0.5]).astype(float)
    return K, grades, np.clip(f + rng.gumbel(0.0, 0.3, 40), -1.0, 1.5)


# --- the kernel


@pytest.mark.interpreted
@pytest.mark.parametrize("mode", [interpolation.ROWS, interpolation.MIRROR, interpolation.LOCATION])
def test_lookup_against_scipy(mode):
    rng = np.random.default_rng(mode)
    rows = 3 if mode == interpolation.ROWS else 1
    coefficients = rng.uniform(-0.5, 0.5, (rows, 7 + 5, 6 + 5, 4))
    values = coefficients.reshape(rows, 12, 44)
    outcomes = [-1.5, 0.0, 4.0][:rows]
    axes = interpolation.pack([-3.0, 4.0, 1.0, -1.0, 0.5, 4.0, 0.0], mode, outcomes)
    for array in (values, axes):
        array.flags.writeable = False
    knots = -3.0 + np.arange(-5.0, 13.0), -1.0 + 0.25 * np.arange(-5.0, 12.0)
    for mu in (-3.0, -0.4, 2.0, 4.0):
        for ell in (-1.0, -0.3, 0.5):
            for y in {0: outcomes, 1: (1.0, -1.0), 2: (0.0, 0.75)}[mode]:
                k = outcomes.index(y) if mode == interpolation.ROWS else 0
                across = BSpline(knots[0], coefficients[k], 5)(mu)
                log_z, t, w, r = BSpline(knots[1], across, 5)(ell)
                at = {0: mu, 1: mu * y, 2: mu + y}[mode]
                found = interpolation.lookup(at, 10.0**ell, y, values, axes)
                std = 10.0**ell * np.exp(w)
                mean = (y if mode == interpolation.MIRROR else 1.0) * (mu + std * t)
                mean += y if mode == interpolation.LOCATION else 0.0
                expected = log_z, mean, std, std * np.exp(min(r, 0.0))
                np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.interpreted
def test_lookup_along_a_third_axis_and_outside():
    coefficients = np.random.default_rng(9).uniform(-0.5, 0.5, (5 + 5, 7 + 5, 6 + 5, 4))
    values = coefficients.reshape(10, 12, 44)
    plane = [-3.0, 4.0, 1.0, -1.0, 0.5, 4.0, 0.0]
    axes = interpolation.pack(plane, interpolation.VOLUME, [], (0.0, 2.0, 2.5))
    for array in (values, axes):
        array.flags.writeable = False
    for y in (0.0, 0.7, 2.0):
        slab = BSpline(0.4 * np.arange(-5.0, 11.0), coefficients, 5)(y)
        across = BSpline(-3.0 + np.arange(-5.0, 13.0), slab, 5)(1.3)
        log_z, _, w, _ = BSpline(-1.0 + 0.25 * np.arange(-5.0, 12.0), across, 5)(-0.2)
        found = interpolation.lookup(1.3, 10.0**-0.2, y, values, axes)
        assert found[0] == pytest.approx(log_z, abs=1e-14)
        assert found[2] == pytest.approx(10.0**-0.2 * np.exp(w), rel=1e-13)
    up, down = (np.nextafter(2.0, s * np.inf) for s in (1, -1))
    for mu, ell, y, inside in [
        (4.0, 0.0, 1.0, True),
        (np.nextafter(4.0, 5.0), 0.0, 1.0, False),
        (np.nextafter(-3.0, -5.0), 0.0, 1.0, False),
        (0.0, 0.51, 1.0, False),
        (0.0, -1.01, 1.0, False),
        (0.0, 0.0, down, True),
        (0.0, 0.0, up, False),
        (0.0, 0.0, -1e-300, False),
        (np.nan, 0.0, 1.0, False),
        (0.0, np.nan, 1.0, False),
        (0.0, 0.0, np.nan, False),
    ]:
        found = interpolation.lookup(mu, 10.0**ell, y, values, axes)
        assert np.isfinite(found).all() == inside, (mu, ell, y)
        assert np.isnan(found).all() != inside


# --- inference


@every_case("order", ["sequential", "parallel", "random"])
@every_case("method", ["qp", "ep"])
def test_infer_equals_quadrature(graded, data, method, order):
    K, y, _ = data
    kwargs = {"method": method, "order": order, "tol": 1e-9, "random_state": 1}
    found = infer(K, y, table=graded, **kwargs)
    exact = infer(K, y, ordinal(), table="exact", **kwargs)
    assert found.converged
    # The tolerance of the table, in the units of each.
    np.testing.assert_allclose(found.sites.tau, exact.sites.tau, rtol=1e-6)
    np.testing.assert_allclose(found.sites.nu, exact.sites.nu, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.mean, exact.mean, atol=1e-6)
    np.testing.assert_allclose(found.variance, exact.variance, rtol=1e-6)
    np.testing.assert_allclose(found.loo(), exact.loo(), rtol=1e-6)
    assert found.log_evidence == pytest.approx(exact.log_evidence, rel=1e-7)
    assert found.lookups.inside >= K.shape[0]
    assert found.lookups.outside == 0
    assert found.evidence_gradient(K) == pytest.approx(exact.evidence_gradient(K), rel=1e-5)


def test_location_third_axis_and_quadrature_agree(skewed, data):
    K, _, y = data
    location, volume = skewed
    exact = infer(K, y, gumbel(), table="exact", tol=1e-9)
    for path, code in ((location, gumbel()), (volume, gumbel(False))):
        found = infer(K, y, code, table=path, tol=1e-9)
        np.testing.assert_allclose(found.sites.tau, exact.sites.tau, rtol=1e-6, atol=1e-7)
        assert found.log_evidence == pytest.approx(exact.log_evidence, rel=1e-7)
        assert found.lookups.inside > 0


def test_project_and_lookup(graded):
    mu, sigma = np.array([-2.0, 0.3, 3.9]), np.array([0.2, 1.0, 3.0])
    for method in ("qp", "ep"):
        found = project_arrays("graded", mu, sigma, 1.0, method, graded)
        exact = project_arrays(ordinal(), mu, sigma, 1.0, method, "exact")
        np.testing.assert_allclose(found.mean, exact.mean, atol=TOLERANCE * 3.0)
        np.testing.assert_allclose(found.std, exact.std, rtol=TOLERANCE)
        np.testing.assert_allclose(found.log_z, exact.log_z, atol=TOLERANCE)
        np.testing.assert_array_equal(project(None, mu, sigma, 1.0, method, graded)[1], found.std)
    star, inside = open_table(graded).lookup(mu, sigma, 1.0)
    np.testing.assert_array_equal(star, project_arrays(None, mu, sigma, 1.0, table=graded).std)
    assert inside.all()
    # Hyper-parameters are judged on the table.
    projector = Projector(None, "qp", graded)
    judge = projector.for_evidence()
    assert judge.method == "ep"
    assert judge.table is projector.table
    assert Projector("probit", "qp").for_evidence().table is None
    refuses("has no sigma_EP outside", open_table, graded, outside="ep")
    words = 'outside="error" is for tables of surfaces'
    refuses(words, open_table, "probit-compact", outside="error")


@pytest.mark.slow
def test_another_process_needs_no_code(graded, data, tmp_path):
    """The module the table was made from is not on that process's path, and never imported."""
    K, y, _ = data
    np.savez(tmp_path / "data.npz", K=K, y=y)
    code = (
        "import sys, numpy as np\n"
        "from qpruntime import infer\n"
        "data = np.load('data.npz')\n"
        f"post = infer(data['K'], data['y'], table={str(graded)!r}, method='ep')\n"
        "assert 'surface_models' not in sys.modules and 'tablegen' not in sys.modules\n"
        "print(repr(post.log_evidence))"
    )
    run = python("-c", code, cwd=tmp_path)
    assert float(run.stdout) == infer(K, y, table=graded, method="ep").log_evidence


def test_a_registered_likelihood_with_parameters(tmp_path, data):
    """Its code is found by name and parameters; a name alone stands for the default ones."""
    K, _, y = data
    path = tmp_path / "t.h5"
    spelt = "student-t(nu=4, scale=0.5)"
    options = {"mu_range": (-3, 3), "log10_sigma_range": (-0.3, 0.1), "tolerance": 1e-6}
    build(spelt, path, preset="surfaces", **options)
    table = open_table(path)
    assert table.likelihood is likelihoods.get(spelt)
    found = infer(K, y, table=table, tol=1e-9)
    exact = infer(K, y, spelt, table="exact", tol=1e-9)
    assert found.lookups.inside > 0
    np.testing.assert_allclose(found.variance, exact.variance, rtol=1e-5)
    assert infer(K, y, spelt, table=path, tol=1e-9).log_evidence == found.log_evidence
    words = r"nu=4, scale=0.5.*build --likelihood student-t --preset surfaces$"
    refuses(words, infer, K, y, "student-t", table=path)


# --- what is refused


def test_outside_says_where_and_what_to_do(graded, data):
    K, y, _ = data
    with pytest.raises(TableError, match=r"N\(0, 10\^2\).*-4 to 4.*-1 to 0.5") as caught:
        infer(100.0 * K, y, table=graded)
    message = str(caught.value)
    # No command names a likelihood that was handed over in Python.
    assert "tablegen.build(likelihood, preset='surfaces', outcomes=range(0, 3)" in message
    assert "log10_sigma_range=(-1.0, 1.0)) in Python" in message
    refuses(r"mu_range=\(-8.0, 4.0\)", open_table(graded).lookup, -7.5, 1.0, 2.0, error=TableError)
    strict = {"table": open_table(graded, outside="error"), "mean": 9.0}
    refuses("outside the table", infer, K, y, ordinal(), error=TableError, **strict)
    # It is integrated where the code is at hand.
    found = infer(100.0 * K, y, ordinal(), table=graded, tol=1e-9)
    exact = infer(100.0 * K, y, ordinal(), table="exact", tol=1e-9)
    assert found.lookups.outside > 0
    np.testing.assert_allclose(found.sites.tau, exact.sites.tau, rtol=1e-6)
    for method in ("qp", "ep"):
        a = project(ordinal(), 50.0, 1.0, 1.0, method, graded)
        assert a == project(ordinal(), 50.0, 1.0, 1.0, method, "exact")


def test_other_code_of_the_same_name_is_refused(graded, data):
    K, y, _ = data
    refuses(r"its parameters are .*'high': 1.5", infer, K, y, ordinal(high=1.5), table=graded)
    options = {"name": "graded", "theta": {"low": -1.0, "high": 1.0}, "log_concave": True}
    other = Likelihood.from_log_prob(lambda f, y, theta: -0.5 * (f - y) ** 2, **options)
    refuses(r"log p\(y = 0 \| f = -3.44\) is -5.9168, not ", infer, K, y, other, table=graded)
    refuses(r"for the likelihood 'graded\(high=1, low=-1\)'", infer, K, y, "probit", table=graded)
    # A damaged name: pairs are no numbers.
    metadata = replace(open_table(graded).metadata, likelihood="binomial", parameters={})
    assert known(metadata) is None
    assert "is none of its observations" in difference(likelihoods.get("binomial"), metadata)


def test_what_needs_the_density(graded, data):
    K, y, _ = data
    for options in ({"power": 0.5}, {"weights": np.full(40, 0.5)}, {"method": "vb"}):
        refuses("density of 'graded' is needed", infer, K, y, table=graded, **options)
    words = "density of 'graded' is needed: weights and powers"
    refuses(words, infer, K, y, table=graded, power=0.5)
    found = infer(K, y, ordinal(), table=graded, power=0.5, method="ep", tol=1e-9)
    exact = infer(K, y, ordinal(), method="ep", power=0.5, tol=1e-9)
    np.testing.assert_allclose(found.sites.tau, exact.sites.tau, rtol=1e-6)


def test_observations_the_table_does_not_hold(graded, skewed, data):
    K, y, z = data
    refuses(r"y has the value 3, .* holds y = 0, 1, 2 \(one of", infer, K, y + 1.0, table=graded)
    refuses(r"y has the value .* holds y = -1 to 1.5", infer, K, z + 1.0, table=skewed[1])
    refuses("finite", infer, K, np.where(z > 0, np.nan, z), table=skewed[0])
    assert infer(K, z + 0.5, table=skewed[0], mean=0.5).converged


@every_case(
    ("name", "value"),
    [
        *(("mode", "volume"), ("mode", "os.system"), ("outcomes", 3), ("log_concave", "yes")),
        *(("source", None), ("probes", [[0.0, 1.0]]), ("probes", {"f": 0.0})),
    ],
)
def test_traits_that_make_no_sense(graded, name, value):
    document = json.loads(open_table(graded).metadata.to_json())
    document["traits"][name] = value
    metadata = Metadata.from_json(json.dumps(document), "file")
    refuses(r"metadata field 'traits' has " + name, standin, metadata, "file", error=TableError)


def test_plain_likelihoods_do_as_well(tmp_path, data):
    def split(f, y, theta):
        return (y - f) - np.exp(y - f), 0.0

    own = Likelihood("mine", "real", Pointer(split, SPLIT), lambda y: finite(y, "y"), location=True)
    path = tmp_path / "mine.h5"
    build(own, path, mu_range=(-2, 2), log10_sigma_range=(-0.5, 0.0), tolerance=1e-5)
    found = project("mine", 0.4, 0.8, 1.0, table=path)
    np.testing.assert_allclose(found, project(gumbel(), 0.4, 0.8, 1.0, table="exact"), rtol=1e-5)


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_a_classifier_of_a_table_alone(tmp_path, monkeypatch, method, links):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    path = tmp_path / "links.h5"
    path.write_bytes(links.read_bytes())
    x = np.linspace(-2.0, 2.0, 20)[:, None]
    y = np.where(np.sin(3.0 * x[:, 0]) > 0.2, "yes", "no")
    options = {"kernel": ConstantKernel(1.0, "fixed") * RBF(0.8, "fixed"), "method": method}
    model = GPClassifier(likelihood=None, table=str(path), **options).fit(x, y)
    code = GPClassifier(likelihood=cloglog(), table="exact", **options).fit(x, y)
    again = pickle.loads(pickle.dumps(model))
    for fitted in (model, again):
        proba = fitted.predict_proba(x)
        np.testing.assert_allclose(proba, code.predict_proba(x), rtol=100 * TOLERANCE)
    refuses("two classes and one of the likelihoods", model.predict_interval, x)
    # Here predictions need the table too.
    path.unlink()
    words = rf"likelihood cloglog, data sha256 {model.table_sha256_}"
    refuses(words, again.predict_proba, x, error=TableError)
