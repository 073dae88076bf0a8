"""Values and slopes of every radial kernel against mpmath's formulas and differences.

Formulas are written anew, of distances in the units of the inputs. Relative errors are a few
roundings of exponentials of numbers up to 10: 1e-12 is generous, and a factor of 1.001 fails.
"""

import mpmath as mp
import numpy as np
import pytest
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
)

from qpruntime.kernels.radial_kernels import fill_radial
from qpruntime.kernels.random_features import stationary_terms
from qpruntime.kernels.registry import parts_of
from tests.tools.cases import every_case, refuses

DISTANCES = [1e-3, 0.05, 0.7, 1.9, 4.0]


def matern(nu):
    def value(r, length_scale):
        u = mp.sqrt(2 * nu) * r / length_scale
        return 2 ** (1 - mp.mpf(nu)) / mp.gamma(nu) * u**nu * mp.besselk(nu, u)

    return value


SQUARED = lambda r, length_scale: mp.exp(-((r / length_scale) ** 2) / 2)  # noqa: E731
CASES = [
    (RBF(0.8), SQUARED, {"length_scale": 0.8}),
    *((Matern(1.3, nu=nu), matern(nu), {"length_scale": 1.3}) for nu in (0.5, 0.9, 1.5, 2.5, 4.2)),
    (Matern(0.8, nu=np.inf), SQUARED, {"length_scale": 0.8}),
    (
        RationalQuadratic(1.3, 0.7),
        lambda r, alpha, length: (1 + (r / length) ** 2 / (2 * alpha)) ** -alpha,
        {"alpha": 0.7, "length_scale": 1.3},
    ),
    (
        ExpSineSquared(1.1, 2.3),
        lambda r, length, period: mp.exp(-2 * mp.sin(mp.pi * r / period) ** 2 / length**2),
        {"length_scale": 1.1, "periodicity": 2.3},
    ),
]


@every_case("kernel, formula, parameters", CASES)
def test_shapes(kernel, formula, parameters):
    parts = parts_of(kernel)
    assert list(parts.parameters) == sorted(parameters)
    unit = parameters["length_scale"] if parts.scaled else 1.0
    r = np.array(DISTANCES)
    f, g = parts.shape(kernel, (r / unit) ** 2, True)
    np.testing.assert_array_equal(parts.shape(kernel, (r / unit) ** 2, False)[0], f)
    sure = {"rtol": 1e-12, "atol": 1e-300}
    np.testing.assert_allclose(f, kernel(np.zeros((1, 1)), r[:, None])[0], **sure)
    with mp.workdps(40):
        theta = [mp.log(mp.mpf(v)) for v in parameters.values()]

        def at(x, *logs):
            return formula(x, *(mp.exp(v) for v in logs))

        want = [at(mp.mpf(x), *theta) for x in DISTANCES]
        np.testing.assert_allclose(f, [float(v) for v in want], **sure)
        by_r = [mp.diff(at, (mp.mpf(x), *theta), (1,) + (0,) * len(theta)) for x in DISTANCES]
        want = [float(-slope / x * unit**2) for slope, x in zip(by_r, DISTANCES, strict=True)]
        np.testing.assert_allclose(g, want, **sure)
        for k, name in enumerate(parameters):
            order = tuple(int(j == k + 1) for j in range(len(theta) + 1))
            want = [float(mp.diff(at, (mp.mpf(x), *theta), order)) for x in DISTANCES]
            if name in parts.slopes:
                found = parts.slopes[name](kernel, r / unit)
            else:
                found = g * (r / unit) ** 2
            # Parts of order 1 may cancel.
            np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-15)
    if parts.compiled >= 0:
        K, slope = np.empty((2, 1, 1))
        for x, value, by in zip(DISTANCES, f, g * (r / unit) ** 2, strict=True):
            fill_radial(np.array([[x]]), unit, 0.25, 2.0, parts.compiled, K, slope)
            expected = [0.25 + 2.0 * value, 2.0 * by]
            np.testing.assert_allclose([K[0, 0], slope[0, 0]], expected, **sure)


@every_case("kernel", [case[0] for case in CASES])
def test_no_distance_and_infinite_ones(kernel):
    parts = parts_of(kernel)
    with np.errstate(over="ignore"):
        f, g = parts.shape(kernel, np.array([0.0, 1e300 if parts.scaled else 4.0]), True)
    assert f[0] == pytest.approx(1.0, rel=1e-9)  # Bessel functions are taken at 1e-10
    assert np.isfinite(f).all()
    assert np.isfinite(g).all()
    assert f[1] <= (1e-100 if parts.scaled else 1.0)


SPECTRA = [
    *(RBF(0.8), Matern(1.3, nu=0.5), Matern(1.3, nu=1.5), Matern(1.3, nu=2.5), Matern(1.3, nu=3.3)),
    RationalQuadratic(1.3, 0.7),
]


@every_case("kernel", SPECTRA)
def test_spectra(kernel):
    """Means of cosines of 2^18 frequencies: the kernel, to five standard errors, 1/sqrt(2^19)."""
    (term,) = stationary_terms(ConstantKernel(2.0) * kernel)
    drawn = term.frequencies(2**18, 1, np.random.default_rng(0))[:, 0]
    found = [np.cos(drawn * x).mean() for x in DISTANCES]
    want = kernel(np.zeros((1, 1)), np.array(DISTANCES)[:, None])[0]
    np.testing.assert_allclose(found, want, atol=5.0 / np.sqrt(2.0**19))
    points = np.random.default_rng(1).standard_normal((4, 2))
    x, step = points[0] + 0.1, 1e-5
    value, slope = term.slope(x, points)
    np.testing.assert_allclose(value, 2.0 * kernel(x[None], points)[0], rtol=1e-12)
    for k, h in enumerate(step * np.eye(2)):
        ends = [2.0 * kernel((x + s * h)[None], points)[0] for s in (1.0, -1.0)]
        np.testing.assert_allclose(slope[:, k], (ends[0] - ends[1]) / (2.0 * step), atol=1e-8)


def test_spectra_that_are_not_known():
    for kernel in (DotProduct(), RBF(1.0) * RBF(2.0), ExpSineSquared()):
        refuses("its spectrum is not known", stationary_terms, kernel)
