"""A file that was changed and sealed again is refused when it is loaded, or its model works."""

import copy
import json
import random
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import qpruntime as qp
from qpruntime._sealed_file import array_from, read_sealed, write_sealed
from qpruntime.effects import EffectsModel, Fixed, Groups
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 5.0, (24, 2))
F = np.sin(X[:, 0])
COUNTS = RNG.poisson(np.exp(F)).astype(float)
NEW = X[:3] + 0.1
SMOOTH = ConstantKernel(1.0) * RBF(1.0)


def effects():
    data = {"x": X[:, 0], "shop": np.arange(24) % 4}
    model = EffectsModel([Fixed("x"), Groups("shop")], "poisson", integrate="mode")
    return model.fit(data, COUNTS).predict, {"x": NEW[:, 0], "shop": np.array([0, 1, 9])}


def dense():
    """A posterior without an estimator."""
    K = np.exp(-0.5 * (X[:, :1] - X[:, :1].T) ** 2)
    return qp.infer(K, np.where(F > 0.0, 1.0, -1.0)).predict, (K[:3], np.ones(3))


def precision():
    """A chain of latent values, each seen twice: kernels follow the indices of its factor."""
    n = len(X) // 2
    Q = sparse.csr_array(2.1 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1))
    A = sparse.csr_array(np.eye(n)[np.arange(len(X)) % n])
    return qp.infer_precision(A, Q, np.where(F > 0.0, 1.0, -1.0)).predict, A[:3]


def places(tree):
    """Return every list and object of the tree with the places of its entries."""
    if not isinstance(tree, (list, dict)):
        return []
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    return [place for key in keys for place in ((tree, key), *places(tree[key]))]


def an_object(name, *arguments, kind="object"):
    return {kind: name, "arguments": list(arguments), "state": None}


VALUES = [
    *(None, "x", "", -1, 0, 10**9, 10**30, 0.5, 1e300, True, [], {}, [[]], {"float": "nan"}),
    *({"list": []}, {"dict": []}, {"array": 0}, {"scalar": 0}, {"dtype": "zzz"}, {"list": ["a"]}),
    *({"set": [{"list": []}]}, {"dict": [[{"list": []}, 1]]}, {"slice": [1, 2]}),
    *({"objects": [1], "shape": [2]}, {"tuple": [1]}, an_object("sites/1", {"tuple": []})),
    an_object("likelihood/1", "no such", kind="call"),
]


def forged(document, arrays, rng):
    """Return a copy with one array or one value changed."""
    document, arrays = copy.deepcopy(document), list(arrays)
    if rng.random() < 0.5:
        k = rng.randrange(len(arrays))
        array = arrays[k]
        arrays[k] = rng.choice(
            [
                lambda: array[..., :-1] if array.ndim else array,
                lambda: array.ravel()[: array.size // 2],
                lambda: array[None],
                lambda: np.full(array.shape, np.nan),
                lambda: array.astype("U5"),
                lambda: array.astype("i4") if array.dtype.kind in "biuf" else array,
                lambda: array.astype("c16") if array.dtype.kind in "biuf" else array,
                lambda: rng.choice(arrays),
            ]
        )()
        return document, arrays
    holder, k = rng.choice(places(document["tree"]))
    if rng.random() < 0.2:
        del holder[k]
    else:
        holder[k] = rng.choice(VALUES)
    return document, arrays


def check_forgeries(make, count, seed, tmp_path):
    predict, new = make()
    predict.__self__.save(tmp_path / "model")
    with open(tmp_path / "model", "rb") as file:
        members = read_sealed(file, "model")
    document = json.loads(members["model.json"])
    arrays = [array_from(members[f"{k}.npy"]) for k in range(document["arrays"])]
    rng, refused = random.Random(seed), 0
    for _ in range(count):
        changed, kept = forged(document, arrays, rng)
        text = json.dumps(changed).encode()
        named = {f"{k}": np.array(array) for k, array in enumerate(kept)}
        write_sealed(tmp_path / "forged", "model", {"model.json": text, **named})
        with warnings.catch_warnings(action="ignore"):
            try:
                model = qp.load(tmp_path / "forged")
            except qp.TableError:
                refused += 1
                continue
            try:
                arguments = new if isinstance(new, tuple) else (new,)
                values = getattr(model, predict.__name__)(*arguments)
            except qp.QPError:
                continue
        assert np.asarray(values).dtype.kind in "biuf", (changed, kept)
    # Many changes are harmless: of parameters that a fitted model does not read again.
    assert 0.1 * count < refused < 0.9 * count


FIXED = {"kernel": SMOOTH, "optimize": False}
MODELS = [
    lambda: (qp.GPClassifier(**FIXED).fit(X, F > 0.0).predict_proba, NEW),
    lambda: (qp.GPClassifier(**FIXED, inducing=6).fit(X, F > 0.0).predict_proba, NEW),
    lambda: (qp.GPRegressor(**FIXED).fit(X, F).predict, NEW),
    lambda: (qp.GPPoissonRegressor(**FIXED, link="exp").fit(X, COUNTS).predict, NEW),
    *(effects, dense, precision),
]


@every_case("make", MODELS)
def test_forged_files(make, tmp_path):
    check_forgeries(make, 200 if make is dense else 30, 1, tmp_path)


@pytest.mark.slow
@every_case("make", MODELS)
@every_case("seed", range(5))
def test_forged_files_of_many_kinds(make, seed, tmp_path):
    check_forgeries(make, 400, seed, tmp_path)


def test_moments_that_are_not_finite_are_refused(tmp_path):
    model = qp.GPRegressor(SMOOTH, optimize=False).fit(X, F)
    model._centre_ = np.inf
    model.save(tmp_path / "model")
    refuses("its predictions are not finite", qp.load, tmp_path / "model", error=qp.TableError)
