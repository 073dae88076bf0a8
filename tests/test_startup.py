"""First runs: eight processes at once on an empty cache, no cache at all, one notice."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from llvmlite import binding
from scipy import special

from qpruntime import __main__ as command, _compile_notice, _numba, warmup
from tests.tools.cases import refuses
from tests.tools.commands import python

PACKAGE = Path(_numba.__file__).parent
# A kernel that compiles in a second, and all those of a projection.
SMALL = "from qpruntime._special import log_ndtr;print(repr(log_ndtr(-30.0)))"
PROJECT = "from qpruntime import project;print(repr(float(project('probit', 0.0, 1.0, 1)[1])))"


def start(cache, *options, code=SMALL):
    return subprocess.Popen(
        [sys.executable, *options, "-c", code],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return float(out), err


@pytest.mark.slow
def test_notices_when_cold_and_of_other_sources_and_none_when_warm(tmp_path):
    """A cache of other sources may name classes that are no more, and then cannot be read."""
    value, err = finish(start(tmp_path))
    assert value == pytest.approx(special.log_ndtr(-30.0), rel=1e-14)
    assert err.count("compiling kernels") == len(err.splitlines()) == 1
    where = f"takes a few seconds; kept in {tmp_path}"
    assert f"for qpruntime._special on this machine; {where}" in err
    assert finish(start(tmp_path, "-W", "error")) == (value, "")
    for index in tmp_path.rglob("*.nbi"):
        index.write_bytes(pickle.dumps(numba.__version__) + b"of other sources")
    again, err = finish(start(tmp_path))
    assert again == value
    assert "compiling" in err


LATER = """
import numba, time
from qpruntime import GPClassifier, _compile_notice
from qpruntime.estimators import base
_compile_notice.QUIET = 1.0

def compiled(value, module="qpruntime.test"):
    def function(x):
        return x + value
    function.__module__ = module
    return numba.njit(function)

first = compiled(1.0, "qpruntime.likelihoods.probit")
base.settings_of = lambda _: first(1.0) / 0.0
try:
    GPClassifier().fit([[1.0], [2.0]], [0, 1])
except ZeroDivisionError:
    compiled(2.0)(1.0)  # at once: the same wait
time.sleep(1.5)
inner = compiled(3.0)

def outer(x):
    return inner(x)

outer.__module__ = "qpruntime.test"
numba.njit(outer)(1.0)
"""


def test_what_compiles_is_named_by_the_call_and_announced_again_later():
    first, second = python("-c", LATER, timeout=100).stderr.splitlines()
    assert "compiling kernels for GPClassifier on this machine; takes about 12 s the first" in first
    assert "compiling more kernels" in second


def test_a_cache_that_cannot_be_written_is_none():
    value, _ = finish(start("/proc/nowhere"))
    assert value == pytest.approx(special.log_ndtr(-30.0), rel=1e-14)


def test_kernels_compile_again_for_edits_of_what_they_import_and_of_nothing_else(
    tmp_path, monkeypatch
):
    """A fingerprint is of contents: a copy has the same, whatever the times of its files."""
    shutil.copytree(PACKAGE, tmp_path / "qpruntime", ignore=shutil.ignore_patterns("__pycache__"))
    kernels = "qpruntime.quadrature.sigma_star_kernels"

    def edited(name):
        _numba.fingerprint.cache_clear()
        _numba._source.cache_clear()
        path = tmp_path / "qpruntime" / name
        before = path.read_text()
        path.write_text(before + "# edited\n")
        found = _numba.fingerprint(kernels)
        path.write_text(before)
        return found

    first = _numba.fingerprint(kernels)
    monkeypatch.setattr(_numba, "_ROOT", tmp_path)
    assert edited("inference/posterior.py") == edited("likelihoods/probit.py") == first
    assert len({edited("_special.py"), edited("quadrature/sigma_star_kernels.py")} | {first}) == 3
    monkeypatch.undo()
    _numba.fingerprint.cache_clear()
    _numba._source.cache_clear()


@_numba.kernel
def rounded_rest(x, square):
    return x * x - square


@_numba.contracted
def fused_rest(x, square):
    return x * x - square


@_numba.contracted
def rest_by_a_contracted_kernel(x, square):
    return rounded_rest(x, square)


@pytest.mark.skipif(not _numba._LINKED, reason="callees inherit options with this numba")
def test_a_kernel_keeps_its_arithmetic_whoever_calls_it_first():
    x = 0.1
    assert rest_by_a_contracted_kernel(x, x * x) == rounded_rest(x, x * x) == 0.0
    if binding.get_host_cpu_features().get("fma"):
        assert fused_rest(x, x * x) != 0.0


def test_warming_up_says_what_it_compiles(monkeypatch, capsys):
    def step():
        def function(x):
            return x + 1.0

        function.__module__ = "qpruntime.test"
        numba.njit(function)(1.0)

    monkeypatch.setitem(warmup.GROUPS, "dense", (("one kernel", step),))
    before = _numba.compilations()
    assert command.main(["warmup", "dense"]) == 0
    out, err = capsys.readouterr()
    assert _numba.compilations() == before + 1
    line, total = out.splitlines()
    assert line.split()[:5] == ["dense", "one", "kernel", "1", "kernels"]
    assert total.startswith("1 kernels in ")
    assert err == ""
    assert command.main(["warmup", "--quiet", "dense"]) == 0
    assert capsys.readouterr() == ("", "")


def test_warming_up_where_nothing_can_be_kept(monkeypatch, capsys):
    monkeypatch.setattr(_numba, "_folders", {"qpruntime._special": None})
    assert command.main(["warmup"]) == 1
    assert "set NUMBA_CACHE_DIR to a folder that can be written" in capsys.readouterr().err
    notice = _compile_notice.announcement("qpruntime.learning", False, _numba.cache_folder())
    assert "in every process, as no folder can be written: set NUMBA_CACHE_DIR" in notice
    # A folder that was named and not taken.
    monkeypatch.undo()
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    monkeypatch.setitem(warmup.GROUPS, "dense", ())
    assert command.main(["warmup", "dense"]) == 0
    assert "NUMBA_CACHE_DIR=/proc/nowhere cannot be written; " in capsys.readouterr().err


def test_a_notice_names_what_compiles_how_long_and_where_it_is_kept(monkeypatch, tmp_path):
    folders = {"qpruntime.a": str(tmp_path / "x" / "a"), "qpruntime.b": str(tmp_path / "x" / "b")}
    monkeypatch.setattr(_numba, "_folders", folders)
    notice = _compile_notice.announcement("qpruntime.bayesopt.search", False, _numba.cache_folder())
    assert "compiling kernels for the optimiser on this machine; takes about 10 s" in notice
    assert f"; kept in {tmp_path / 'x'} (" in notice


def test_groups_of_a_warm_up(capsys):
    assert tuple(warmup.GROUPS) == command._NAMES
    with pytest.raises(SystemExit):
        command.main(["warmup", "nothing"])
    assert "there are dense, sparse" in capsys.readouterr().err
    refuses("group must be one of dense, sparse", warmup.steps_of, ["nothing"])


GUIDE = """
import numpy as np
from qpruntime import GPClassifier
rng = np.random.default_rng(0)
X = rng.normal(size=(120, 2)) * [1.0, 1e4] + [0.0, 5e4]
y = np.where(X[:, 0] + (X[:, 1] - 5e4) / 1e4 > 0.3, "up", "down")
clf = GPClassifier().fit(X[:80], y[:80])
clf.predict_proba(X[80:82]), clf.predict_interval(X[80:82], level=0.9)
print(clf.score(X[80:], y[80:]))
"""


# What default fits to many rows take, of few features and of many.
DEFAULTS = """
import numpy as np
from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor, Inducing
rng = np.random.default_rng(0)
for columns in (3, 14):
    X = rng.standard_normal((1600, columns))
    f = np.sin(2.0 * X[:, 0]) + X[:, 1]
    y = f + 0.1 * rng.standard_normal(1600)
    kinds, asked = (GPClassifier, GPPoissonRegressor, GPRobustRegressor), Inducing(budget=10)
    models = [kind(inducing=asked) for kind in kinds]
    for model, seen in zip(models, (y > 0.0, rng.poisson(np.exp(y)), y)):
        model.set_params(random_state=0).fit(X, seen).predict(X[:50])
print(0.0)
"""


@pytest.mark.slow
def test_nothing_compiles_after_a_warm_up(tmp_path):
    """Every group once more, the guide's first block, and default fits to many rows."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-m", "qpruntime", "warmup"]
    for expected in (None, "0"):
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        *lines, total = done.stdout.splitlines()
        assert len(lines) == sum(map(len, warmup.GROUPS.values()))
        assert done.stderr == ""
        assert expected is None or total.split()[0] == expected
    assert finish(start(tmp_path, code=GUIDE)) == (pytest.approx(0.95, abs=0.06), "")
    assert "compiling" not in finish(start(tmp_path, code=DEFAULTS))[1]


@pytest.mark.slow
def test_eight_first_runs_at_once(tmp_path):
    ended = [finish(p) for p in [start(tmp_path, code=PROJECT) for _ in range(8)]]
    (value,) = {value for value, _ in ended}
    # To the 1e-9 of the shipped table.
    assert value == pytest.approx(0.825215532323065547, rel=1e-9)
    assert [err.count("compiling kernels") for _, err in ended] == [1] * 8
    assert finish(start(tmp_path, code=PROJECT))[1] == ""


COUNTED = """
import logging, numpy as np
from numba.core import event
logging.disable(logging.WARNING)
class Count(event.Listener):
    total = 0
    def on_start(self, event):
        Count.total += 1
    def on_end(self, event):
        pass
event.register("numba:compile", Count())
from qpruntime import GPClassifier, _numba
rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
GPClassifier().fit(X, X[:, 0] > 0.3 * rng.normal(size=60)).predict_proba(X)
print(complex(_numba.compilations(), Count.total).real * 1000 + Count.total)
"""


@pytest.mark.slow
def test_releases_of_numba_that_were_not_tested_call_kernels_as_numba_does(tmp_path):
    """Two fits with another version of numba, to the bits of those with this one."""
    code = (
        "import numba;numba.__version__ = {!r};"
        "import numpy as np;from qpruntime import _numba, infer;"
        "assert _numba._LINKED == {};x = np.arange(9.0);y = np.where(x % 4 < 2, 1.0, -1.0);"
        "K = np.exp(-np.subtract.outer(x, x) ** 2 / 8);"
        "fits = infer(K, y, 'probit'), infer(K, y, 'logistic', 'qp');"
        "print(repr(float(sum(post.log_evidence for post in fits))))"
    )
    versions = {numba.__version__: True, "0.67.0": False}
    codes = {version: code.format(version, linked) for version, linked in versions.items()}
    values = {finish(start(tmp_path / version, code=text))[0] for version, text in codes.items()}
    assert len(values) == 1


@pytest.mark.slow
def test_a_first_fit_compiles_no_more_than_it_did(tmp_path):
    """32 kernels and 17 helpers of numba: array expressions in a kernel bring dozens of these."""
    value, _ = finish(start(tmp_path, code=COUNTED))
    ours, everything = divmod(int(value), 1000)
    assert 20 <= ours <= 32
    assert everything <= 49


FAILING = """
import math
import numpy as np
from qpruntime import project, _numba
from qpruntime.errors import NumericalError
from qpruntime.quadrature.sigma_star_kernels import EXACT_POINT

class Broken:
    @property
    def overloads(self):
        raise MemoryError("no room for code")

whole, EXACT_POINT._kernel = EXACT_POINT._kernel, Broken()
try:
    project("logistic", 0.3, 2.0, 1, table="exact")
except MemoryError as error:
    print_later = str(error) == "no room for code"
EXACT_POINT._kernel = whole
mean, std = project("logistic", 0.3, 2.0, 1, table="exact")
print(float(print_later and math.isfinite(mean) and 0 < std < 2.0))
"""


@pytest.mark.slow
def test_quadrature_that_cannot_compile_is_an_exception_and_is_tried_again(tmp_path):
    value, _ = finish(start(os.environ.get("NUMBA_CACHE_DIR", ""), code=FAILING))
    assert value == 1.0
