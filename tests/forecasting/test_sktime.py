"""The forecaster in sktime's hands; all of sktime's own checks are slow."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from qpruntime.forecasting import GPForecaster

pytest.importorskip("sktime")
pandas = pytest.importorskip("pandas")

#: sktime announces what its next release does.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

Y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(2.0 * np.pi * np.arange(72) / 12.0)))


def made(**options):
    from qpruntime.forecasting.sktime import GPSktimeForecaster

    return GPSktimeForecaster(trend="level", noise=False, integrate="mode", **options)


def test_forecasts_are_those_of_the_forecaster():
    months = pandas.period_range("2015-01", periods=72, freq="M")
    found = made().fit(pandas.Series(Y, index=months, name="cases"), fh=[1, 2, 3])
    alone = GPForecaster(trend="level", noise=False, integrate="mode").fit(Y, index=months)
    mean = found.predict()
    assert mean.index.tolist() == list(pandas.period_range("2021-01", periods=3, freq="M"))
    np.testing.assert_allclose(mean.to_numpy(), alone.predict(3), rtol=1e-9)
    ends = found.predict_interval(coverage=0.9)
    np.testing.assert_allclose(ends.to_numpy(), alone.predict_interval(3), rtol=1e-9)
    quantiles = found.predict_quantiles(alpha=[0.9, 0.1]).to_numpy()[:, ::-1]
    np.testing.assert_allclose(quantiles, alone.predict_quantiles(3, q=[0.1, 0.9]), rtol=1e-9)
    back = found.predict(fh=[-1, 0])
    np.testing.assert_allclose(back.to_numpy(), alone.predict(index=months[-2:]), rtol=1e-9)


@pytest.mark.slow
def test_checks_of_sktime():
    from sktime.utils.estimator_checks import check_estimator

    from qpruntime.forecasting.sktime import GPSktimeForecaster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(GPSktimeForecaster, raise_exceptions=False, verbose=False)
    failed = {name: str(what) for name, what in found.items() if what != "PASSED"}
    assert not failed, failed
    assert len(found) > 100
