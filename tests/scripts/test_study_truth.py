"""The study of posteriors on a cluster: what workers return is what one process does."""

import json

import pytest

from tests.tools.dask_cluster import RealCluster
from tests.tools.script_modules import run_script


@pytest.mark.slow
def test_a_cluster_does_what_one_process_does(tmp_path):
    """Chains are as long as time allows, but what is compared with them is the same."""
    names = ("logistic all one", "laplace torn")
    options = ["--seconds", "0.5", "--wanted", "500", "--sets", *names]
    found = []
    with RealCluster(tmp_path, workers=2) as cluster:
        for more in ([], ["--scheduler", cluster.address]):
            output = tmp_path / f"{len(more)}.jsonl"
            assert run_script("studies", "truth", *options, *more, "--kept", output).code == 0
            records = [json.loads(line) for line in output.read_text().splitlines()]
            found.append({record["name"]: record["said"] for record in records})
    assert set(found[0]) == set(found[1]) == set(names)
    for name in names:
        for word in ("spread", "evidence spread", "predicted"):
            assert found[1][name][word] == pytest.approx(found[0][name][word], rel=1e-6)
