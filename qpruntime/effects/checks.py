"""What is known to be off in a fitted model, in sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from qpruntime.effects.block import LOG_DEVIATION
from qpruntime.effects.families import Family
from qpruntime.effects.fixed import CONDITION, FixedBlock
from qpruntime.effects.groups import GroupsBlock
from qpruntime.effects.objective import Evaluation, Objective

__all__ = ["collapsed", "findings", "single_rows"]

# Log evidence that a deviation has to gain over 0, for the data to ask for it.
_GAIN = 1.0
# Share of the prior standard deviation that a posterior one keeps where data say little.
_KEPT = 0.4


def single_rows(block: Any, A: sparse.csr_array, family: Family) -> bool:
    """Whether labels say nothing of a group's deviation: no level has two rows."""
    if family.kind != "labels" or not isinstance(block, GroupsBlock) or block.over:
        return False
    return bool(np.diff(sparse.csc_array(A).indptr).max(initial=0) < 2)


def collapsed(objective: Objective, mode: Evaluation) -> list[tuple[str, float]]:
    """Deviations that the data do not ask for, with what the evidence gains by them."""
    assembly, found = objective.assembly, []
    for block, part in zip(assembly.blocks, assembly.parts, strict=True):
        for k, name in enumerate(block.parameters):
            if not name.startswith("log sd"):
                continue
            theta = mode.theta.copy()
            theta[part.start + k] = LOG_DEVIATION[0]
            objective.nearby.add(mode.theta, mode.posterior.sites)
            gain = mode.evidence - objective(theta).evidence
            if gain < _GAIN:
                found.append((f"{block.name}{name[6:]}", float(gain)))
    return found


def findings(objective: Objective, mode: Evaluation) -> list[str]:
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
            wide = (kept > _KEPT) & (np.abs(latent[place]) > 2.0 * np.sqrt(variance[place]))
            if objective.family.kind in ("labels", "pairs"):
                for label in block.labels[wide]:
                    said.append(
                        f"the labels are separated by {label}: its coefficient is held by its prior"
                    )
        if single_rows(block, A[:, place], objective.family):
            said.append(
                f"no level of {block.name} has two rows: of labels its standard deviation cannot "
                "be told from the scale of the coefficients, and its prior decides"
            )
    return said
