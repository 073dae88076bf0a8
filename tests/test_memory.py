"""What cannot fit into memory is refused in words; predictions in blocks are those of one."""

import resource
import tracemalloc
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern

import qpruntime as qp
from qpruntime import GPClassifier, _memory, infer
from qpruntime._memory import PointError, in_blocks
from qpruntime.inference.sparse.engine import Engine, Keeper
from qpruntime.inference.sparse.rows import InducingInputs
from qpruntime.learning.solvers import least_bytes
from tests.tools.cases import refuses
from tests.tools.commands import python

GB = 1e9
MEMINFO = "MemTotal: 64000000 kB\nMemAvailable:  {} kB\nSwapFree: {} kB\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Files as the kernel has them: 4 GB there and no swap, and no group that limits."""

    def told(available=4e6, swap=0, membership="", **files):
        (tmp_path / "meminfo").write_text(MEMINFO.format(int(available), int(swap)))
        (tmp_path / "membership").write_text(membership)
        for name, text in files.items():
            path = tmp_path / "fs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(_memory, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(_memory, "_MOUNT", tmp_path / "fs")
    monkeypatch.setattr(_memory, "address_limit", lambda: np.inf)
    told()
    return told


def test_what_is_left(machine, monkeypatch):
    # A kB is 1024 bytes there.
    assert _memory.left() == (4.096e9, "by the machine")
    machine(swap=1e6)
    assert _memory.left()[0] == 5.12e9
    # Version 2: a pod of 3 GB, in it a job of 2 GB, which has 1.5 GB, of them .25 of files.
    pod = {"pod/memory.max": "3000000000\n", "pod/memory.current": "1800000000\n"}
    job = {
        "pod/job/memory.max": "2000000000\n",
        "pod/job/memory.current": "1500000000\n",
        "pod/job/memory.stat": "anon 9\ninactive_file 150000000\nactive_file 100000000\nx 1\n",
    }
    machine(membership="0::/pod/job\n", **pod, **job)
    assert _memory.left()[0] == 0.75e9
    assert "container" in _memory.left()[1]
    # The group may swap .1 GB more, of which the machine has a GB.
    more = {"pod/job/memory.swap.max": "120000000", "pod/job/memory.swap.current": "20000000"}
    machine(swap=1e6, membership="0::/pod/job\n", **more)
    assert _memory.left()[0] == pytest.approx(0.85e9)
    # Version 1, in a container that does not see its path: the root is its own.
    old = {
        "memory/memory.limit_in_bytes": "2500000000\n",
        "memory/memory.usage_in_bytes": "1000000000\n",
        "memory/memory.stat": "inactive_file 7\ntotal_inactive_file 200000000\n"
        "total_active_file 50000000\n",
    }
    machine(membership="4:memory:/docker/ab\n", **old)
    assert _memory.left()[0] == 1.75e9
    machine(membership="4:memory:/\n", **{"memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"})
    assert _memory.left() == (4.096e9, "by the machine")
    monkeypatch.setattr(_memory, "address_limit", lambda: 1e9)
    monkeypatch.setattr(_memory, "address_used", lambda: 0.4e9)
    assert _memory.left()[0] == pytest.approx(0.6e9)
    assert "ulimit -v" in _memory.left()[1]


def test_the_edge_and_a_system_that_tells_nothing(machine, monkeypatch, tmp_path):
    _memory.require(4.096e9, "this", "less")
    words = r"this takes 4\.1 GB .* left 4\.1 GB by the machine: less"
    refuses(words, _memory.require, 4.096e9 + 1.0, "this", "less")
    assert _memory.fits(4.096e9)
    assert not _memory.fits(4.096e9 + 1.0)
    monkeypatch.setattr(_memory, "_MEMINFO", tmp_path / "absent")
    assert _memory.left()[0] == np.inf
    _memory.require(1e18, "anything", "nothing")


def test_small_work_does_not_ask(monkeypatch):
    monkeypatch.setattr(_memory, "left", lambda: pytest.fail("asked"))
    _memory.require(_memory.squares(1000, 3.0), "this", "less")
    assert _memory.fits(1e6)


class Huge:
    """A matrix of 30 000 rows that is never read."""

    shape, dtype = (30_000, 30_000), np.dtype(np.float64)

    def __len__(self):
        return 30_000

    def __array__(self, *args, **options):
        raise AssertionError("read")


def test_the_least_of_a_dense_fit():
    # Counted in arrays of N x N: distances, K and its slope, a factor, its inverse, a slope.
    unit = 8.0 * 30_000.0**2
    for kernel, learns, count in [
        (ConstantKernel() * Matern(nu=2.5), True, 6),
        (ConstantKernel() * RBF(), True, 4),
        (DotProduct(), True, 4),
        (RBF(), False, 3),
    ]:
        assert least_bytes(30_000, kernel, learns) == count * unit


def test_dense_work_is_refused_before_it_begins(machine, monkeypatch):
    refuses(r"N = 30000 takes 14\.4 GB .* infer_sparse", infer, Huge(), np.ones(30_000))
    X = np.random.default_rng(0).standard_normal((30_000, 2))
    y = np.sign(X[:, 0])
    monkeypatch.setattr("qpruntime.kernels.gradients.cdist", None)
    words = r"N = 30000 rows takes \d+\.\d GB .* inducing=\"auto\""
    refuses(words, GPClassifier(inducing=None).fit, X, y)
    refuses(r"rows takes 21\.6 GB .* inducing=200", GPClassifier(RBF(1.0, "fixed")).fit, X, y)


def test_corrections_and_sparse_features(machine, monkeypatch):
    post = infer(np.eye(3), [1, -1, 1], method="ep")
    monkeypatch.setattr(_memory, "_SMALL", 0.0)
    machine(available=0)
    refuses(r"a correction with N = 3 takes .* leave it out", post.marginals)
    refuses("a correction with N = 3", post.marginals, correction="sample")
    machine()
    assert post.marginals().mean.shape == (3,)
    # Features are kept only where there is memory for them and for what else a pass takes.
    inducing = InducingInputs(RBF(), np.eye(2))
    nbytes = 8 * 2 * 100
    machine(available=0.9 * nbytes / 1024.0)
    assert Keeper().of(inducing, 100, 1e9).chunk(0, slice(0, 10)) is None
    machine(available=2.0 * nbytes / 1024.0 + 1.0)
    assert Keeper().of(inducing, 100, 1e9).chunk(0, slice(0, 10)) is not None
    assert Keeper().of(inducing, 100, 100.0).chunk(0, slice(0, 10)) is None
    machine(available=0)
    rows = SimpleNamespace(n=10)
    refuses(r"inducing inputs: .* take fewer", Engine, rows, None, RBF(), np.eye(2))


def test_under_an_address_limit():
    """A process that may have 600 MB more is let take 400 MB, and does, but not 1.3 GB."""
    code = """
import resource
import numpy as np
from qpruntime import InputError, infer, _memory as memory
limit = int(memory.address_used() + 6e8)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
memory.require(4e8, "this", "less")
print(np.empty(50_000_000).size)
class Matrix:
    shape, dtype = (9000, 9000), np.dtype(float)
    def __len__(self): return 9000
try:
    infer(Matrix(), np.ones(9000), method="ep")
except InputError as error:
    print(error)
"""
    run = python("-W", "ignore", "-c", code, environment={"OPENBLAS_NUM_THREADS": "1"})
    fine, refused = run.stdout.splitlines()
    assert fine == "50000000"
    assert "N = 9000 takes 1.3 GB" in refused
    assert "ulimit -v" in refused


def test_the_limits_of_this_process():
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    assert _memory.address_limit() == (np.inf if limit == resource.RLIM_INFINITY else limit)
    # Between what imports take and all there is.
    assert 1e8 < _memory.address_used() < 1e13
    assert 0.0 < _memory.left()[0] < 1e15


KERNEL = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed")
RNG = np.random.default_rng(5)
X = RNG.uniform(-3.0, 3.0, (30, 2))
NEW = RNG.uniform(-4.0, 4.0, (333, 2))
WAVE = np.sin(X[:, 0]) + 0.2 * X[:, 1]
NOISE = 0.1 * np.random.default_rng(6).standard_normal(30)
EXPOSURE = RNG.uniform(0.5, 2.0, 333)
COUNTS = RNG.integers(0, 5, (333, 3))

COUNTED = np.round(np.exp(WAVE))

#: Models and what they are fitted to.
MODELS = {
    "two classes": (qp.GPClassifier(KERNEL), WAVE > 0.0),
    "three classes": (
        qp.GPClassifier(KERNEL, likelihood="logistic"),
        np.digitize(WAVE, [-0.5, 0.5]),
    ),
    "square": (qp.GPPoissonRegressor(KERNEL), COUNTED),
    "exp": (qp.GPPoissonRegressor(KERNEL, link="exp"), COUNTED),
    "robust": (qp.GPRobustRegressor(KERNEL), WAVE + NOISE),
}


@cache
def fitted(name):
    model, y = MODELS[name]
    return model.fit(X, y)


CLASSES, LINKS = ["two classes", "three classes"], ["square", "exp"]
#: Every predictive method, of models that have it, as a function of model, points and their number.
METHODS = {
    "latent": (list(MODELS), lambda m, x, n: np.column_stack(m.latent(x))),
    "predict": (list(MODELS), lambda m, x, n: m.predict(x)),
    "predict_proba": (CLASSES, lambda m, x, n: m.predict_proba(x)),
    "decision_function": (CLASSES, lambda m, x, n: m.decision_function(x)),
    "predict_interval": (["two classes"], lambda m, x, n: m.predict_interval(x)),
    "with std": ([*LINKS, "robust"], lambda m, x, n: np.array(m.predict(x, return_std=True)).T),
    "exposed": (LINKS, lambda m, x, n: m.predict(x, exposure=EXPOSURE[:n])),
    "predict_count": (LINKS, lambda m, x, n: m.predict_count(x, EXPOSURE[:n])),
    "quantiles": (LINKS, lambda m, x, n: m.predict_quantiles(x, exposure=EXPOSURE[:n])),
    "pmf": (LINKS, lambda m, x, n: m.predict_log_pmf(x, COUNTS[:n], EXPOSURE[:n])),
    "pmf of one": (LINKS, lambda m, x, n: m.predict_log_pmf(x, 2)),
    "real quantiles": (["robust"], lambda m, x, n: m.predict_quantiles(x)),
    "one quantile": (["robust"], lambda m, x, n: m.predict_quantiles(x, 0.3)),
    "density": (["robust"], lambda m, x, n: m.predict_log_density(x, x[:, 0])),
}
PAIRS = [(name, method) for method, (names, _) in METHODS.items() for name in names]


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_blocks_change_nothing(name, method, monkeypatch):
    predict = METHODS[method][1]
    whole = predict(fitted(name), NEW, len(NEW))
    monkeypatch.setattr(qp._memory, "_NUMBERS", 1)
    for n in (333, 64, 33, 1):
        found = predict(fitted(name), NEW[:n], n)
        assert found.shape == (n, *whole.shape[1:])
        assert found.dtype == whole.dtype
        # BLAS sums in an order that depends on the shapes of its matrices.
        if whole.dtype.kind == "f":
            np.testing.assert_allclose(found, whole[:n], rtol=1e-9, atol=1e-12)
        else:
            np.testing.assert_array_equal(found, whole[:n])


LARGE = RNG.uniform(-4.0, 4.0, (150_000, 2))


def peak_beside(function):
    """Megabytes of the most that was allocated at a time, without the result."""
    tracemalloc.start()
    try:
        found = function()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    parts = found if isinstance(found, tuple) else (found,)
    return (peak - sum(part.nbytes for part in parts)) / 1e6


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("two classes", lambda m: m.predict_proba(LARGE)),
        ("two classes", lambda m: m.predict(LARGE)),
        ("two classes", lambda m: m.latent(LARGE)),
        ("three classes", lambda m: m.predict_log_proba(LARGE[::10])),
        ("square", lambda m: m.predict(LARGE, return_std=True)),
        ("square", lambda m: m.predict_log_pmf(LARGE[::30], np.tile(np.arange(40), (5000, 1)))),
        ("square", lambda m: m.predict_quantiles(LARGE[::30])),
        ("exp", lambda m: m.predict(LARGE)),
        ("robust", lambda m: m.predict(LARGE, return_std=True)),
        ("robust", lambda m: m.predict_quantiles(LARGE[::60])),
        ("robust", lambda m: m.predict_log_density(LARGE[::10], LARGE[::10, 0])),
    ],
)
def test_memory(name, call):
    model = fitted(name)
    call(model)
    assert peak_beside(lambda: call(model)) < 64.0


@pytest.mark.slow
def test_memory_of_a_posterior():
    x = np.linspace(0.0, 9.0, 300)
    post = qp.infer(np.exp(-0.5 * (x[:, None] - x) ** 2), np.sign(np.sin(x) + 0.1))
    K_star = np.exp(-0.5 * (np.linspace(0.0, 9.0, 40_000)[:, None] - x) ** 2)
    assert K_star.nbytes > 90e6
    assert peak_beside(lambda: post.predict(K_star, 1.0)) < 20.0
    whole = post.predict(K_star, 1.0)
    for i in (0, 20_000, 39_999):
        got = np.ravel(post.predict(K_star[i : i + 1], 1.0))
        np.testing.assert_allclose(got, [whole[0][i], whole[1][i]], rtol=1e-9)
    K_star[31_234, 7] = np.nan
    refuses(r"K_star\[31234, 7\] is nan", post.predict, K_star, 1.0)


def test_the_index_in_an_error_counts_all_points(monkeypatch):
    steep = qp.GPPoissonRegressor(ConstantKernel(500.0, "fixed") * RBF(1.0, "fixed"), link="exp")
    steep.fit(X, np.ones(30))
    points = np.repeat(X[:1], 200, axis=0)
    points[170] = 1e3
    monkeypatch.setattr(qp._memory, "_NUMBERS", 1)
    given = {"return_std": True, "error": qp.NumericalError}
    refuses(r"^point 170 has log rate", steep.predict, points, **given)


def test_joining():
    for rows in (0, 1, 31, 32, 33, 100):
        table = np.arange(3.0 * rows).reshape(rows, 3)
        found = in_blocks(lambda part, table=table: (table[part], table[part, 0]), rows, 10**9)
        np.testing.assert_array_equal(found[0], table)
        np.testing.assert_array_equal(found[1], table[:, 0])
    sizes = []
    in_blocks(lambda part: sizes.append(part.stop - part.start) or np.zeros(sizes[-1]), 10**6, 500)
    assert max(sizes) * 500 <= 2**19
    assert sum(sizes) == 10**6
    assert len(sizes) > 900

    def failing(part):
        raise PointError(3, "is bad")

    refuses(r"^point 3 is bad$", in_blocks, failing, 10, 1, error=PointError)
