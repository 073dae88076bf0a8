"""Fixtures shared by all tests: reference values, and one small grid table built by tablegen."""

import json

import pytest

from tests.tools import conformance
from tests.tools.multiprecision import SEED
from tests.tools.oracle import REFERENCE, RBFData

# Not tests: scripts that need GPy.
collect_ignore = ["reference"]


def pytest_report_header():
    """Say which random cases `test_registry_extremes.test_of_the_day` draws today."""
    return f"QP_SEED={SEED} repeats the random cases of today"


@pytest.fixture(scope="session")
def reference():
    """Return a loader of ``tests/reference/NAME.csv``."""
    return conformance.reference


@pytest.fixture(scope="session")
def gpy_values():
    """Return stored GPy results: data, and what EP made of them at several settings."""
    return json.loads((REFERENCE / "gpy_ep.json").read_text())


@pytest.fixture(scope="session")
def small_table(tmp_path_factory):
    """Return the path of a table on mu -2..2 (41 nodes), log10 sigma -1..1 (21 nodes)."""
    from tablegen import build

    path = tmp_path_factory.mktemp("tables") / "probit.h5"
    axes = {"mu_range": (-2.0, 2.0), "mu_step": 0.1, "log10_sigma_range": (-1.0, 1.0)}
    build("probit", path, method="direct", log10_sigma_step=0.1, workers=1, **axes)
    return path


@pytest.fixture(scope="session")
def toy():
    """Return a small data set with overlapping classes, and its kernel matrices."""
    return RBFData(24, seed=3)
