"""The whole site, built once for all tests that look at it."""

import os
from pathlib import Path

import pytest

from tests.tools.docs_built import built


@pytest.fixture(scope="session")
def whole_site(tmp_path_factory):
    """The folder of all pages; QP_DOCS_SITE names one that is there."""
    if there := os.environ.get("QP_DOCS_SITE"):
        return Path(there).resolve()
    return built(tmp_path_factory.mktemp("site"))
