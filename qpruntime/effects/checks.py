"""Checks of a fitted effects model: bounds, deviations without data, dependent columns."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from qpruntime.effects.families import ObservationFamily
from qpruntime.effects.fixed import CONDITION, FixedBlock
from qpruntime.effects.groups import GroupsBlock
from qpruntime.effects.objective import EffectsObjective, ObjectiveValue, deviation_gains
from qpruntime.effects.term import EffectBlock

__all__ = ["bounds_reached", "collapsed", "findings", "single_rows"]

# Log evidence that a deviation has to gain over 0, for the data to ask for it.
_GAIN = 1.0
# Share of the prior standard deviation that a posterior one keeps where data say little.
_KEPT = 0.4
# Distance from a bound, of logarithms and the like, that is none.
_BOUND = 1e-3


def single_rows(block: EffectBlock, A: sparse.csr_array, family: ObservationFamily) -> bool:
    """Decide whether labels say nothing of a group's deviation: no level has two rows."""
    if family.kind != "labels" or not isinstance(block, GroupsBlock) or block.over:
        return False
    return bool(np.diff(sparse.csc_array(A).indptr).max(initial=0) < 2)


def collapsed(objective: EffectsObjective, mode: ObjectiveValue) -> list[tuple[str, float]]:
    """Deviations that the data do not ask for, with what the evidence gains by them."""
    names = objective.assembly.names
    gains = deviation_gains(objective, mode, range(len(names)))
    return [(names[k].replace(": log sd", ""), gain) for k, gain in gains if gain < _GAIN]


def bounds_reached(
    objective: EffectsObjective, mode: ObjectiveValue, upper: bool = False
) -> list[str]:
    """Sentences about hyper-parameters at a bound of theirs.

    If `upper`, only upper bounds of deviations and scales are listed: a deviation of 0 and Poisson
    noise of counts are no faults of a fit.
    """
    inside = "" if objective.family.unit == 1.0 else f" times {objective.family.unit:.4g}"
    said = []
    words = zip(objective.names, objective.parameters, objective.scaled, strict=True)
    places = zip(mode.theta, objective.bounds, strict=True)
    for (name, parameter, scaled), (theta, (low, high)) in zip(words, places, strict=True):
        if not high > low:
            continue
        end = "upper" if theta > high - _BOUND else "lower" if theta < low + _BOUND else None
        if end is None or (upper and (end == "lower" or not scaled)):
            continue
        is_log = parameter.startswith("log ")
        value = f"{np.exp(theta):.4g}{inside if scaled else ''}" if is_log else f"{theta:.4g}"
        said.append(
            f"{name} is at its {end} bound, {value}: what is said of it follows from the bound; "
            "look for rows of another unit or a column that explains y by itself"
        )
    return said


def findings(objective: EffectsObjective, mode: ObjectiveValue) -> list[str]:
    """Sentences about design, groups and coefficients."""
    said = []
    A = sparse.csc_array(objective.A)
    latent, variance = mode.posterior.latent()
    for block, place in zip(objective.assembly.blocks, objective.assembly.places, strict=True):
        if isinstance(block, FixedBlock):
            if block.condition > CONDITION:
                names = ", ".join(block.dependent)
                said.append(
                    f"the columns of the fixed effects are dependent (condition number "
                    f"{block.condition:.3g}): {names} follows from the others, and the prior alone "
                    "divides the effect among them; leave it out"
                )
            kept = np.sqrt(variance[place]) / block.std
            # A density that is cut off on one side has a mean of 1.3 of its standard deviations.
            wide = (kept > _KEPT) & (np.abs(latent[place]) > np.sqrt(variance[place]))
            words = {"labels": "the labels are", "pairs": "the successes are"}
            if objective.family.kind in ("labels", "pairs", "counts"):
                what = words.get(objective.family.kind, "zero counts are")
                for label in block.labels[wide]:
                    hint = "give it a smaller std=, or leave the column out"
                    if label == "intercept":
                        hint = "all observations may be alike; give a smaller intercept="
                    said.append(
                        f"{what} separated by {label}: its coefficient is held by its prior; {hint}"
                    )
        if single_rows(block, A[:, place], objective.family):
            said.append(
                f"no level of {block.name} has two rows: of labels its standard deviation cannot "
                "be told from the scale of the coefficients, and its prior decides"
            )
    return said
