"""What is to be said of rows whose sites have not settled freely."""

from __future__ import annotations

from qpruntime.errors import ConvergenceWarning, warn
from qpruntime.inference.sparse.settle import Ended

__all__ = ["warn_unsettled"]


def warn_unsettled(ended: Ended, tol: float) -> None:
    """Warn if the sites have not settled, or only with precisions held at zero."""
    if not ended.settled:
        change = f"{ended.history[-1]:.2g}" if ended.history else "at all"
        warn(
            f"not converged after {len(ended.history)} sweeps: the sites still change by {change} "
            f"(tol {tol:g}), most of all row {ended.worst}; raise max_sweeps, lower damping, or "
            "check that observation and the kernel; the evidence of sites that have not settled "
            "may be anything",
            ConvergenceWarning,
        )
    elif ended.held:
        warn(
            f"{ended.held} site precisions are held at zero: they would be negative and leave "
            "other sites without a proper cavity, because the posterior has several peaks; move "
            "the prior mean away from zero or lower the prior variance",
            ConvergenceWarning,
        )
