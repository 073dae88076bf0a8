"""Surfaces that are built to be looked up, not to be certified."""

import pytest


@pytest.fixture(scope="module")
def few_points():
    """Look for cells on few lines, and certify at few points."""
    from tablegen.surfaces import build, errors, node_counts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errors, "POINTS", 100)
        patch.setattr(build, "_CHECKS", 200)
        patch.setattr(node_counts, "_LINES", (0.0, 0.33, 0.5, 0.84, 1.0))
        yield
