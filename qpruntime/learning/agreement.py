"""Whether optimiser runs that end at the same parameters have found the same fixed point.

EP of a likelihood with two peaks may have several fixed points at one set of hyper-parameters;
each restart follows its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qpruntime.learning.maximise import Optimum

__all__ = ["several_fixed_points"]

# Log parameters that differ by no more are the same.
_SAME = 1e-2
# Near an optimum the objective changes by less over that distance, beside its slope.
_CHANGE = 0.05


def several_fixed_points(optima: Sequence[Optimum]) -> list[str]:
    """Say so, in a list of one sentence, if runs end where the best one did with other values.

    Parameters
    ----------
    optima : sequence of Optimum
        Best first. Runs that have not succeeded are left out.
    """
    best = optima[0]
    values = {
        round(run.value, 3)
        for run in optima[1:]
        if run.success
        and best.success
        and run.theta.size == best.theta.size
        and (gap := np.abs(run.theta - best.theta)).max(initial=0.0) <= _SAME
        and best.value - run.value > _CHANGE + float(np.abs(run.slope) @ gap)
    }
    if not values:
        return []
    others = ", ".join(f"{value:g}" for value in sorted(values, reverse=True))
    return [
        "restarts end at the same parameters with different values, "
        f"{best.value:.6g} and {others}: the sites have several fixed points there, "
        "and the one of the highest is kept; move the "
        "prior mean away from zero or lower the prior variance"
    ]
