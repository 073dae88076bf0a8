"""Sparse power EP and QP: reference values, and the dense engine where the two meet."""

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from cases import every_case
from qpruntime import infer_sparse

X = np.linspace(-3.0, 3.0, 40)[:, None]
LABELS = np.sign(np.sin(1.7 * X[:, 0]) + 0.3 * np.cos(5.0 * X[:, 0]))
COUNTS = np.round(np.exp(1.0 + np.sin(1.3 * X[:, 0])))
Z = np.linspace(-3.0, 3.0, 7)[:, None]
KERNEL = ConstantKernel(2.0) * RBF(0.9)
EXACT = {"jitter": 0.0, "tol": 1e-12}
FOURTH = np.where(np.arange(40) % 4 == 0, 2.0, 1.0)

# Method, power; evidence, sum of leave-one-out densities, mean and variance at 0.4: made by other
# code, a prototype in NumPy; they hold to all digits printed.
PROBIT = [
    ("ep", 1.0, (-15.2778517304, -9.2336083860, 1.7171401498, 0.3907366564)),
    ("qp", 1.0, (-15.2778540573, -9.2311857868, 1.7170156237, 0.3903605681)),
    ("ep", 0.5, (-15.3074752560, -9.2052550705, 1.7180038844, 0.3886641829)),
    ("qp", 0.5, (-15.3074759525, -9.2040993003, 1.7179366353, 0.3884764287)),
]
POISSON = [
    ("ep", 1.0, None, (-70.5568389278, 1.4492180254, None)),
    ("qp", 1.0, None, (-70.5568399458, None, 0.0658134615)),
    ("ep", 0.5, None, (-70.6938947101, None, None)),
    ("ep", 1.0, FOURTH, (-86.1135617903, None, None)),
]


@every_case("method, power, expected", PROBIT)
def test_reference_values_of_probit(method, power, expected):
    options = {"method": method, "power": power, **EXACT}
    looked = infer_sparse(KERNEL, X, LABELS, Z, **options)
    # The table of the power 1/2 is certified to 1e-8; without it nothing is lost.
    table = None if power == 1.0 else "exact"
    post = infer_sparse(KERNEL, X, LABELS, Z, table=table, **options)
    assert abs(looked.log_evidence - post.log_evidence) < 4e-8
    mean, variance = post.predict([[0.4]])
    found = [post.log_evidence, post.loo().sum(), mean[0], variance[0]]
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=6e-11)
    assert post.converged
    assert post.least == (post.loo().min(), post.loo().argmin())


@every_case("method, power, weights, expected", POISSON)
def test_reference_values_of_counts(method, power, weights, expected):
    options = {"method": method, "power": power, "weights": weights, "mean": 0.5, **EXACT}
    post = infer_sparse(KERNEL, X, COUNTS, Z, "poisson-exp", **options)
    mean, variance = post.predict([[0.4]])
    found = [post.log_evidence, mean[0], variance[0]]
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if b is not None]
    np.testing.assert_allclose(*zip(*pairs, strict=True), rtol=0.0, atol=6e-11)
