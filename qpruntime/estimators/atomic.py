"""Fits happen whole or not at all: `fit` works on a draft, which is taken over at its end.

What ends a fit early, Ctrl-C included, leaves the model as it was.
"""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["commit", "draft_of", "renewed"]

Model = TypeVar("Model")


def draft_of(model: Model) -> Model:
    """Return a copy with the parameters and nothing of a fit."""
    draft = object.__new__(type(model))
    draft.__dict__ = _by_kind(model, fitted=False)
    return draft


def commit(model: Model, draft: Model) -> Model:
    """Take over what was fitted, in place of all that an earlier fit has left."""
    whole = _by_kind(model, fitted=False) | _by_kind(draft, fitted=True)
    model.__dict__ = whole  # one instruction, which no signal divides
    return model


def renewed(model: Model, changed: dict[str, Any]) -> Model:
    """Take over some of what was fitted."""
    model.__dict__ = vars(model) | changed
    return model


def _by_kind(model: Any, fitted: bool) -> dict[str, Any]:
    """Attributes that a fit sets, whose names end in an underscore, or all the others."""
    return {name: value for name, value in vars(model).items() if name.endswith("_") == fitted}
