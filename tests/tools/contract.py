"""scikit-learn's own checks of an estimator, as one test."""

import warnings

from sklearn.utils.estimator_checks import check_estimator

from qpruntime import ConvergenceWarning


def check_contract(estimator, expected_failures):
    """Run all checks; say which fail, and which pass although they are expected to fail."""
    with warnings.catch_warnings():
        # Data without structure leave the optimiser on flat ground, of which it says so.
        warnings.simplefilter("ignore", ConvergenceWarning)
        results = check_estimator(
            estimator, expected_failed_checks=expected_failures, on_skip=None, on_fail=None
        )
    assert len(results) > 40, "scikit-learn has fewer checks than it had"
    failed = [f"{r['check_name']}: {r['exception']!r}" for r in results if r["status"] == "failed"]
    passed = {r["check_name"] for r in results if r["status"] == "passed"}
    failed += [f"{name} passes now" for name in sorted(passed & set(expected_failures))]
    assert not failed, f"{estimator!r}:\n" + "\n".join(failed)
