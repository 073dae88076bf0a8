"""Results as they are read: printed, summarised, and by mypy."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

import qpruntime
from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor, Search, infer
from qpruntime.learning.objective import OBJECTIVES
from qpruntime.predictive.counts import LINKS
from qpruntime.predictive.density import PREDICTIVES

x = np.linspace(-3.0, 3.0, 20)
K = np.exp(-0.5 * (x[:, None] - x) ** 2)
LABELS = np.where(np.sin(2.0 * x) > 0.0, 1, -1)


def test_print_is_five_lines():
    post = infer(K, LABELS)
    lines = str(post).splitlines()
    assert len(lines) == 5
    assert lines[0] == "Posterior of 20 sites: probit, method qp"
    assert f"converged after {post.n_sweeps} sweeps" in lines[1]
    assert f"log evidence {post.log_evidence:.6f}" in lines[2]
    assert f"least expected is observation {np.argmin(post.loo())}," in lines[2]
    assert lines[3].endswith("0 negative precisions, 0 held at zero, 0 updates skipped, 0 damped")
    assert lines[4] == f"lookups    {post.lookups.inside} inside the grid, 0 outside"
    assert post.lookups.inside >= 20
    assert max(map(len, lines)) < 120
    assert repr(post).count("\n") == 0
    assert len(repr(post)) < 100
    assert "probit, qp" in repr(post)


def test_summary():
    post = infer(K, LABELS, method="ep", damping=0.9)
    found = post.summary()
    assert json.loads(json.dumps(found)) == found
    assert found["n"] == 20
    assert found["status"] == "converged"
    assert found["log_evidence"] == post.log_evidence
    assert found["last_change"] == post.history[-1]
    assert (found["inside"], found["outside"]) == tuple(post.lookups)
    assert found["least_log_density"] == post.loo().min() == post.loo()[found["least_expected"]]
    assert 0 <= found["worst"] < 20


def test_log_marginal_likelihood():
    X = x[:, None]
    two = GPClassifier(optimize=False).fit(X, LABELS)
    assert two.log_marginal_likelihood_value_ == two.posterior_.log_evidence
    three = GPClassifier(optimize=False).fit(X, np.digitize(x, [-1.0, 1.0]))
    each = [post.log_evidence for post in three.posterior_]
    assert three.log_marginal_likelihood_value_ == pytest.approx(np.mean(each), rel=1e-15)
    for model in (GPPoissonRegressor(optimize=False), GPRobustRegressor(optimize=False)):
        model.fit(X, np.arange(20) % 4)
        assert model.log_marginal_likelihood_value_ == model.posterior_.log_evidence


def test_words_of_options_are_those_that_are_checked():
    assert set(get_args(get_type_hints(GPPoissonRegressor.__init__)["link"])) == {*LINKS, "auto"}
    assert set(get_args(get_type_hints(Search)["objective"])) == set(OBJECTIVES)
    hints = get_type_hints(GPPoissonRegressor.predict_log_pmf)
    assert set(get_args(hints["predictive"])) == set(PREDICTIVES)


USER = """
from typing import Any
import numpy as np
from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor, Posterior, infer

post: Posterior = infer(np.eye(2), [1, -1], method="qp", order="parallel")
counts = GPPoissonRegressor(link="exp", optimize="loo").fit([[0.0], [1.0]], [1, 2])
reveal_type(counts.posterior_.log_evidence)
reveal_type(counts.mean_)
reveal_type(counts.predict([[0.0]]))
reveal_type(counts.predict([[0.0]], return_std=True))
reveal_type(GPRobustRegressor().scale_)
reveal_type(GPClassifier().posterior_)
infer(np.eye(2), [1, -1], method="pq")
infer(np.eye(2), [1, -1], order="paralel")
GPClassifier(method="laplace")
GPPoissonRegressor(optimize="evidense")
"""


@pytest.mark.slow
def test_a_users_script_is_typed(tmp_path):
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(USER))
    run = subprocess.run(
        # In the checkout, whose cache holds what the packages and NumPy say of types.
        [sys.executable, "-m", "mypy", "--ignore-missing-imports", script],
        capture_output=True,
        text=True,
        cwd=Path(qpruntime.__file__).parents[1],
    )
    lines = [line for line in run.stdout.splitlines() if "script.py" in line]
    revealed = [line.split('"')[1] for line in lines if "Revealed" in line]
    assert len(revealed) == 6, run.stdout + run.stderr
    assert [name.endswith("float") for name in revealed[:2]] == [True, True]
    assert "ndarray" in revealed[2]
    assert revealed[3].startswith("tuple[")
    assert revealed[4].endswith("float")
    assert "Posterior" in revealed[5]
    errors = [line for line in lines if ": error:" in line]
    assert len(errors) == 4
    for error, word in zip(errors, ("pq", "paralel", "laplace", "evidense"), strict=True):
        assert word in error
