"""Add the likelihoods of a folder to the package and use them.

``python -m tests.tools.added FOLDER labels|counts``, a script of `test_base`; it prints a word for
each step that holds.
"""

import csv
import gc
import sys
from pathlib import Path

import numpy as np
from scipy.special import gammaln, ndtri
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import qpruntime.likelihoods
from tests.tools.conformance import Reference, conforms
from tests.tools.oracle import tilted

FOLDER = Path(sys.argv[1])
qpruntime.likelihoods.__path__.append(str(FOLDER))

import tablegen  # noqa: E402
from qpruntime import GPClassifier, GPPoissonRegressor, Likelihood, infer, open_table  # noqa: E402
from qpruntime.likelihoods import get  # noqa: E402
from tablegen.surfaces import (  # noqa: E402
    build as surface_builds,
    errors as surface_errors,
)
from tablegen.verify import verify  # noqa: E402

# Compiling makes many small objects, which need not be looked through a thousand at a time.
gc.set_threshold(20_000, 20, 20)
# What is tested here is not the certificate.
surface_errors.POINTS = surface_builds._CHECKS = 300

CAVITIES = [(0.0, 1.0), (-3.0, 0.5), (2.0, 3.0), (0.4, 0.05), (1.0, 6.0)]


def log_cauchit(f, y):
    """Log p(y|f), written again."""
    return np.log(np.arctan2(1.0, -y * f) / np.pi)


def log_doubled(f, y):
    """Log p(y|f) of counts with rate e^(2f)."""
    return 2.0 * y * f - np.exp(np.minimum(2.0 * f, 700.0)) - gammaln(y + 1.0)


def write_references(name, log_p, outcomes):
    """Write ``NAME.csv`` by the oracle, which knows the log density alone."""
    with (FOLDER / f"{name}.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(Reference._fields)
        for mu, sigma in CAVITIES:
            for y in outcomes:
                rows.writerow([mu, sigma, y, *tilted(lambda f, y=y: log_p(f, y), mu, sigma)])


def check_classes():
    """A likelihood of labels: references, both kinds of table, inference, the classifier."""
    write_references("cauchit", log_cauchit, (-1.0, 1.0))
    conforms(get("cauchit"), FOLDER)
    print("conforms")
    small = {"mu_range": (-4.0, 4.0), "log10_sigma_range": (-0.5, 0.5), "workers": 1}
    grid = {"mu_step": 0.25, "log10_sigma_step": 0.25, "method": "direct"}
    tablegen.build("cauchit", FOLDER / "grid.h5", **small, **grid)
    found = verify(FOLDER / "grid.h5", points=20, seed=1, workers=1)
    assert found.ok, found
    assert open_table(FOLDER / "grid.h5").likelihood is get("cauchit")
    print("grid")
    tablegen.build("cauchit", FOLDER / "s.h5", preset="surfaces", tolerance=1e-6, **small)
    surfaces = open_table(FOLDER / "s.h5")
    print("surfaces")
    x = np.linspace(-2.0, 2.0, 12)
    y = np.where(x + 0.4 * np.sin(9.0 * x) > 0.0, 1.0, -1.0)
    K = 2.0 * np.exp(-0.5 * (x[:, None] - x) ** 2)
    # The same density by the rule that users' own take.
    plain = Likelihood.from_log_prob(
        lambda f, y: np.log(np.arctan2(1.0, -y * f) / np.pi), name="plain", outcomes=[-1, 1]
    )
    for method in ("ep", "qp"):
        post = infer(K, y, "cauchit", method=method, table="exact")
        assert post.converged
        other = infer(K, y, plain, method=method, table="exact")
        np.testing.assert_allclose(post.mean, other.mean, rtol=1e-6)
    # Between nodes a grid of this step is bilinear to a few percent of sigma*.
    looked = infer(K, y, "cauchit", table=FOLDER / "grid.h5")
    np.testing.assert_allclose(looked.mean, post.mean, atol=0.02)
    np.testing.assert_allclose(infer(K, y, table=surfaces).mean, post.mean, atol=1e-4)
    bound = infer(K, y, "cauchit", method="vb")
    assert bound.converged
    assert bound.log_evidence < post.log_evidence
    print("infer")
    X = x[:, None]
    model = GPClassifier(ConstantKernel(2.0) * RBF(1.0), likelihood="cauchit", optimize=False)
    model.fit(X, y)
    p, (low, high) = model.predict_proba(X)[:, 1], model.predict_interval(X, 0.8).T
    assert ((low < p) & (p < high)).all()
    mean, variance = model.latent(X)
    reach = ndtri(0.9) * np.sqrt(variance)
    np.testing.assert_allclose(high, np.exp(log_cauchit(mean + reach, 1.0)), rtol=1e-12)
    assert (model.predict(X) == y).mean() > 0.8
    print("classifier")


def check_counts():
    """A likelihood of counts: by f = g/2 it is the exponential link of another kernel."""
    write_references("poisson-exp2", log_doubled, (0.0, 3.0))
    conforms(get("poisson-exp2"), FOLDER)
    print("conforms")
    X, y = np.linspace(0.0, 4.0, 9)[:, None], [0, 1, 0, 2, 3, 5, 4, 9, 12]
    exposure = np.linspace(1.0, 2.0, 9)
    one, other = (
        GPPoissonRegressor(ConstantKernel(c) * RBF(1.5), link=link, optimize=False, table="exact")
        for c, link in ((1.0, "exp"), (0.25, "exp2"))
    )
    for model in (one, other):
        model.fit(X, y, exposure)
    np.testing.assert_allclose(one.predict(X), other.predict(X), rtol=1e-6)
    np.testing.assert_array_equal(one.predict_quantiles(X), other.predict_quantiles(X))
    np.testing.assert_array_equal(one.predict_count(X), other.predict_count(X))
    np.testing.assert_allclose(one.predict_log_pmf(X, y), other.predict_log_pmf(X, y), rtol=1e-6)
    print("regressor")


if __name__ == "__main__":
    {"labels": check_classes, "counts": check_counts}[sys.argv[2]]()
