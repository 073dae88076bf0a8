"""All rows by the dense engine, from the kernel that some of them have chosen."""

from __future__ import annotations

import math
from dataclasses import replace

from qpruntime.learning.data import Data
from qpruntime.learning.dense import Dense
from qpruntime.learning.policy.acts import DENSE
from qpruntime.learning.policy.candidates import WIDE, Candidate, last_rung
from qpruntime.learning.policy.judged import Stage
from qpruntime.learning.policy.operations import dense_evaluation, dense_inference
from qpruntime.learning.policy.rest import Rest
from qpruntime.learning.policy.trial import Climbed, Trial
from qpruntime.learning.sparse.end import advise
from qpruntime.learning.training import Fit

__all__ = ["end_dense"]

# Relative tolerance and iterations with all of these rows.
_END = (1e-5, 15)
# And with length-scales of single features; what each must raise the log evidence by there, unless
# judges gain by them as well: Akaike's price of 1 is too little for judges who do not know.
_EACH, _CLEAR = (1e-3, 30), 1.35
# What that takes, in evaluations.
_EVALUATIONS = 45


def end_dense(
    rest: Rest, data: Data, trial: Trial, candidate: Candidate, number: int
) -> tuple[Fit, Candidate]:
    """All rows by the dense engine, as many steps further as there is room; and their kernel.

    Process `number` shares what the budget has left with those after it.
    """
    settings, n = rest.settings, len(data.y)
    Dense(settings).require(n, candidate.climbed.kernel, True)
    if n > DENSE:
        candidate = last_rung(trial, candidate, rest.subsets, rest.processes) or candidate
    climbed = candidate.climbed
    trial = Trial(data, settings, rest.budget, slice(0, 0))
    left = rest.budget.most - rest.budget.taken
    room = left / (rest.processes - number) - dense_inference(n)
    tolerance, steps = _END
    steps = min(steps, int(room / dense_evaluation(n)) - 2)
    # All rows are worth a few steps, but none if they would be cut off at once.
    few = n > DENSE and steps < 2
    last = (
        climbed if few else trial.climb(climbed.start, n, tolerance, max(steps, 2), climbed.theta)
    )
    sites = None if few else last.sites
    rest.stages.append(Stage(n, "all rows, dense", math.nan, rest.budget.taken))
    each = _by_feature(rest, trial, candidate, last)
    if each is not None:
        last, sites, candidate = each, each.sites, replace(candidate, by_feature=True)
    projector = last.projector(data)
    own = replace(data, projector=projector)
    posterior = Dense(settings).infer(last.kernel, own, sites)
    rest.budget.take(dense_inference(n))
    advise(last.kernel, data.X)
    fit = Fit(last.kernel, projector.likelihood, posterior, (last.optimum, climbed.optimum))
    return fit, candidate


def _by_feature(rest: Rest, trial: Trial, candidate: Candidate, last: Climbed) -> Climbed | None:
    """A length-scale for each feature where the evidence of all rows is far higher by them.

    Half of the rows learn too little for them where there are few, and rows held out cannot
    know what all will.
    """
    n, common = len(trial.data.y), candidate.common
    count = common.start.by_feature if common is not None else 0
    cost = _EVALUATIONS * dense_evaluation(n, count)
    if common is None or not 0 < count <= WIDE or not rest.budget.allows(cost):
        return None
    one = trial.climb(common.start, n, *_END, common.theta)
    each = trial.climb(one.start.refined(one.theta), n, *_EACH)
    rest.stages.append(
        Stage(n, "all rows, one length-scale a feature", math.nan, rest.budget.taken)
    )
    price = count if candidate.by_feature else _CLEAR * count
    clear = each.optimum.value - one.optimum.value > price
    return each if clear and each.optimum.value > last.optimum.value else None
