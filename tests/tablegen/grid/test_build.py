"""The paper's grid, built once by the command line."""

import numpy as np

from qpruntime.projection.open import open_table
from tablegen.verify import verify


def test_it_was_built_within_its_limits(full_grid):
    path, finished = full_grid
    assert finished.code == 0
    assert path.stat().st_size < 20001 * 2001 * 8 + 10_000
    assert [p.name for p in path.parent.iterdir()] == ["probit.h5"]
    assert finished.peak_bytes < 1.5e9
    # 8 s on an idle machine with warm caches; the compiler alone takes longer on a cold start.
    assert finished.seconds < 120


def test_its_certificate(full_grid):
    metadata = open_table(full_grid[0]).metadata
    assert metadata.method == "spectral"
    assert len(metadata.certificate["chebyshev_nodes"]) == 2
    assert metadata.shape == (1, 20001, 2001)
    assert metadata.certificate["nodes"]["max_relative_error"] < 1e-13
    assert metadata.certificate["cells"]["max_relative_error"] < 2e-6


def test_reference_values_that_are_nodes(full_grid, reference):
    table, ref = open_table(full_grid[0]), reference("probit")
    i, j = (ref.y * ref.mu + 10) * 1000, (np.log10(ref.sigma) + 1) * 1000
    inside = (i >= 0) & (i <= 20000) & (j >= 0) & (j <= 2000)
    on_node = (np.abs(i - i.round()) < 1e-9) & (np.abs(j - j.round()) < 1e-9) & inside
    assert on_node.sum() > 10
    found = table.values[0, i[on_node].round().astype(int), j[on_node].round().astype(int)]
    np.testing.assert_allclose(found, ref.sigma_star[on_node], rtol=1e-12, atol=0)


def test_it_verifies(full_grid):
    assert verify(full_grid[0], points=500, seed=7).problems == ()
