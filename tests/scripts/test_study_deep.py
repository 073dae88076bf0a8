"""The published tables: what workers of a cluster return is what one process does."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("jax", reason="the extra deep is not installed")
pytest.importorskip("distributed", reason="the extra cluster is not installed")

from tests.tools.dask_cluster import RealCluster
from tests.tools.script_modules import run_script

#: What takes another time on every machine.
TIMES = ("seconds", "cpu")


@pytest.mark.slow  # two workers import JAX
def test_a_cluster_does_what_one_process_does(tmp_path):
    """The same bits, for workers round alike here; and what is kept is not done again."""
    options = ["--sets", "friedman1", "--models", "GP", "DGP-1", "--inducing", "5"]
    options += ["--steps", "20", "--seeds", "2"]
    found = []
    with RealCluster(tmp_path, workers=2) as cluster:
        for more in ([], ["--scheduler", cluster.address]):
            kept = tmp_path / f"{len(more)}" / "kept.jsonl"
            for _ in range(2):
                done = run_script("studies", "deep", *options, *more, "--kept", kept)
                assert (done.code, "friedman1" in done.out) == (0, True)
            records = [json.loads(line) for line in kept.read_text().splitlines()]
            assert len(records) == 4
            found.append(
                {
                    (record["model"], record["split"]): {
                        name: value for name, value in record.items() if name not in TIMES
                    }
                    for record in records
                }
            )
    assert len(found[0]) == 4
    assert found[0] == found[1]
