"""Tied sites: reference values, equal rows, batches, and what rows make of the shared site."""

import numpy as np

from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.iterate import Tied, settle, settle_tied
from qpruntime.inference.sparse.rows import Held
from qpruntime.inference.sparse.state import Base, PowerProjector, posterior_of
from qpruntime.projection.projector import Projector
from tests.inference.sparse.test_infer import KERNEL, LABELS, X, Z

LIMITS = Limits(tol=1e-12, sweeps=100)


def engine(x=X, y=LABELS, power=1.0, kind=Tied, method="ep", likelihood="probit", base=None):
    rule = PowerProjector(Projector(likelihood, method), power)
    return kind(Held(x, np.ascontiguousarray(y)), rule, KERNEL, Z, 0.0, base=base)


def test_reference_values():
    """Made by other code, a prototype in NumPy; all digits printed are right."""
    known = {"ep": (-14.5364092726, 8.0523382773), "qp": (-14.5371318487, 8.0598745002)}
    for method, expected in known.items():
        tied = engine(method=method)
        assert settle(tied, LIMITS).status == "converged"
        found = tied.energy(), 2.0 * np.log(tied.state.root.diagonal()).sum()
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=6e-11)


def test_equal_rows_have_sites_of_their_own():
    x, y = np.full((12, 1), 0.7), np.ones(12)
    for power in (1.0, 0.5):
        tied, own = engine(x, y, power), engine(x, y, power, Engine)
        assert settle(tied, LIMITS).settled
        assert settle(own, LIMITS).settled
        # What the tolerance of the fixed points leaves.
        expected = own.outcome().log_evidence
        assert abs(tied.energy() - expected) < 1e-10
        np.testing.assert_allclose(tied.state.root, own.state.root, rtol=0.0, atol=1e-10)
        np.testing.assert_allclose(tied.state.mean, own.state.mean, rtol=0.0, atol=1e-10)
        settle_tied(again := engine(x, y, power, Engine), LIMITS)
        assert abs(again.outcome().log_evidence - expected) < 1e-10


def test_batches_are_the_whole():
    """A step of one of four equal batches leaves the fixed point of all rows where it is."""
    whole = engine(np.tile(X, (4, 1)), np.tile(LABELS, 4))
    assert settle(whole, LIMITS).settled
    of_whole = whole.state
    left = {"B": 0.75 * of_whole.B, "h": 0.75 * of_whole.h}
    batch = engine(base=Base(posterior_of(of_whole.inducing, of_whole.rule, left), 0.0, 120))
    assert settle(batch, LIMITS).settled
    np.testing.assert_allclose(batch.state.root, of_whole.root, rtol=0.0, atol=1e-10)
    np.testing.assert_allclose(batch.state.mean, of_whole.mean, rtol=0.0, atol=1e-10)


def test_own_sites_make_up_for_what_is_shared():
    """Evidence to 0.003 nats of EP's and its gradient to 1 %, where the energy is 0.7 off."""
    tied, own = engine(), engine(kind=Engine)
    settle(own, LIMITS)
    settle(tied, LIMITS)
    settle_tied(untied := engine(kind=Engine), LIMITS)
    expected, found = own.evaluate(0), untied.evaluate(0)
    assert abs(tied.energy() - expected.value) > 0.5
    assert abs(found.value - expected.value) < 0.004
    np.testing.assert_allclose(found.by_theta, expected.by_theta, rtol=0.015)
    np.testing.assert_allclose(untied.state.root, tied.state.root, rtol=0.0, atol=1e-10)
