"""Models in one file: the same predictions to the bit, and nothing that a stranger could do.

A file that was changed and sealed again is refused when it is loaded, or its model works.
"""

import copy
import hashlib
import io
import json
import os
import random
import warnings
import zipfile

import numpy as np
import pytest
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

import qpruntime as qp
from qpruntime._sealed_file import array_from, read_sealed, write_sealed
from qpruntime.effects import EffectsModel, Fixed, Groups
from qpruntime.persistence import file as saved
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 5.0, (24, 2))
NEW = X[:3] + 0.1
F = np.sin(X[:, 0])
Y = np.where(F > 0.0, "up", "down")
COUNTS = RNG.poisson(np.exp(F)).astype(float)
K = RBF(1.0)(X[:, :1])
SIGNS = np.where(F > 0.0, 1.0, -1.0)
FIXED = {"kernel": ConstantKernel(1.0) * RBF(1.0), "optimize": False}


def test_posteriors_too(tmp_path):
    T = np.sort(X[:, 0])
    posteriors = {
        "dense": (qp.infer(K, SIGNS, "probit", "qp"), (K[:3], np.ones(3))),
        "series": (qp.infer_series(T, SIGNS, Matern(nu=1.5), "probit", "ep"), (NEW[:, 0],)),
        "sparse": (qp.infer_sparse(X, SIGNS, RBF([1.0, 2.0]), X[:9]), (NEW,)),
        "nearest": (qp.infer_sparse(X, SIGNS, RBF([1.0, 2.0]), X[:9], nearest=5), (NEW,)),
    }
    for name, (post, at) in posteriors.items():
        post.save(tmp_path / "p")
        again = type(post).load(tmp_path / "p")
        np.testing.assert_array_equal(again.predict(*at), post.predict(*at), err_msg=name)
        if name in ("dense", "series"):  # the others leave their rows behind, as in pickles
            np.testing.assert_array_equal(again.loo(), post.loo(), err_msg=name)
        assert again.summary() == post.summary(), name
    refuses("holds a LocalPosterior, not a GPClassifier", qp.GPClassifier.load, tmp_path / "p")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    qp.infer(K[:12, :12], SIGNS[:12]).save(path)
    return path.read_bytes()


def refused(data, tmp_path, words="save the model again"):
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(qp.TableError, match=words) as caught:
        qp.load(tmp_path / "bad")
    assert str(caught.value).isprintable()


def test_every_truncation_and_every_flipped_bit_is_refused(written, tmp_path):
    for end in [*range(0, len(written), 97), len(written) - 1]:
        refused(written[:end], tmp_path)
    rng = np.random.default_rng(1)
    for place in {*rng.integers(0, len(written), 250).tolist(), 0, len(written) - 1}:
        changed = bytearray(written)
        changed[place] ^= 1 << int(rng.integers(8))
        refused(bytes(changed), tmp_path, "no saved model")
    # The forger of these tests makes files that are good but for what it changes.
    (tmp_path / "good").write_bytes(resealed(written, lambda _: None))
    assert qp.load(tmp_path / "good").n == 12


def resealed(written, change):
    """The file with members changed, and a hash that is right."""
    with zipfile.ZipFile(io.BytesIO(written)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    method = change(members) or zipfile.ZIP_STORED
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.comment = b"qpruntime-model sha256 " + b"0" * 64
    data = held.getvalue()[:-64]
    return data + hashlib.sha256(data).hexdigest().encode()


def in_document(**changes):
    def change(members):
        members["model.json"] = json.dumps(json.loads(members["model.json"]) | changes).encode()

    return change


def with_tree(tree):
    return in_document(tree=tree)


def compressed(members):
    members["0.npy"] = b"\x93NUMPY\x01\x00" + b"0" * 10**6
    return zipfile.ZIP_DEFLATED


def array_of(header):
    def change(members):
        text = header.encode().ljust(117) + b"\n"
        members["0.npy"] = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text

    return change


def deep(members):
    members["model.json"] = b'{"a":' * 100_000


NESTED = {"list": []}
for _ in range(200):
    NESTED = {"list": [NESTED]}


def an_object(name, *arguments, state=None, kind="object"):
    return {kind: name, "arguments": list(arguments), "state": state}


HOSTILE = {
    "a newer format": (in_document(format=2), "newer qpruntime, this one reads 1: update"),
    "another format": (in_document(format="x"), "document is of format"),
    "no format": (lambda m: m.update({"model.json": b"[]"}), "not a JSON object"),
    "no JSON": (lambda m: m.update({"model.json": b"{"}), "no saved model"),
    "nested without end": (deep, "no saved model"),
    "more arrays": (in_document(arrays=99), "and a document of 99"),
    "fewer arrays": (in_document(arrays=0), "and a document of 0"),
    "compressed, and not larger": (lambda _: zipfile.ZIP_DEFLATED, "compressed, or larger"),
    "compressed": (compressed, "compressed, or larger"),
    "a huge array": (
        array_of("{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000,)}"), "in 0 bytes"
    ),
    "negative": (array_of("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}"), "array"),
    "objects": (array_of("{'descr': '|O', 'fortran_order': False, 'shape': (0,)}"), "of objects"),
    "code": (array_of("__import__('os').system('true')"), "no saved model"),
    "os.system": (with_tree(an_object("os:system", "true", kind="call")), "which is not called"),
    "a class of others": (with_tree(an_object("subprocess:Popen", "true")), "which is not made"),
    "builtins": (with_tree(an_object("builtins:eval", "1", kind="call")), "which is not called"),
    "of another name": (in_document(of="os:system"), "no estimator or posterior"),
    "deep": (with_tree(NESTED), "nesting deeper"),
    "no such array": (with_tree({"array": 10**6}), "array number"),
    "a kind": (with_tree({"eval": ["1"]}), "of kind 'eval'"),
    "two kinds": (with_tree({"list": [], "tuple": []}), "two kinds"),
    "a wrong number": (with_tree({"float": "1e999"}), "the number"),
    "dunder": (
        with_tree(
            an_object("warp/1", state={"dict": [["__class__", 1]]})
        ),
        "an attribute '__class__'",
    ),
    "another root": (with_tree({"tuple": []}), "a tuple under the name of another"),
    "other parts": (
        with_tree(an_object("likelihood/1", kind="call")), "with other parts"
    ),
}  # fmt: skip


@every_case("what", list(HOSTILE))
def test_hostile_files_with_right_hashes(what, written, tmp_path):
    change, words = HOSTILE[what]
    refused(resealed(written, change), tmp_path, words)


@every_case("what", ["a pipe", "a device"])
def test_only_regular_files_are_read(what, tmp_path):
    """A pipe would be waited for, and a device has no end."""
    path = tmp_path / "pipe" if what == "a pipe" else "/dev/zero"
    if what == "a pipe":
        os.mkfifo(path)
    refuses("cannot be read: it is no regular file", qp.load, path)


def test_a_file_larger_than_memory_is_refused_unread(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 42)
    refuses(r"the model of sparse takes .* of memory at least", qp.load, tmp_path / "sparse")


class Own(RBF):
    """A kernel of a user."""


def test_what_cannot_be_saved_is_named_and_nothing_is_left(tmp_path):
    path = tmp_path / "model"
    path.write_text("before")
    mean = HistGradientBoostingClassifier(max_iter=2)
    refusals = {
        "HistGradientBoosting": qp.GPClassifier(RBF(), prior_mean=mean, optimize=False).fit(X, Y),
        "test_file.Own": qp.GPClassifier(Own(), optimize=False).fit(X, Y),
        "random_state is a numpy.random": qp.GPClassifier(**FIXED, random_state=RNG).fit(X, Y),
    }
    for words, model in refusals.items():
        refuses(words, model.save, path)
    refuses("estimator or a posterior, got RBF", saved.save, RBF(), path)
    assert path.read_text() == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    refuses("cannot be read: No such file", qp.load, tmp_path / "none")
    refuses("cannot be written", qp.infer(K, SIGNS).save, tmp_path / "no" / "folder")


def effects():
    data = {"x": X[:, 0], "shop": np.arange(24) % 4}
    model = EffectsModel([Fixed("x"), Groups("shop")], "poisson", integrate="mode")
    return model.fit(data, COUNTS).predict, {"x": NEW[:, 0], "shop": np.array([0, 1, 9])}


def dense():
    """A posterior without an estimator."""
    return qp.infer(K, SIGNS).predict, (K[:3], np.ones(3))


def precision():
    """A chain of latent values, each seen twice: kernels follow the indices of its factor."""
    n = len(X) // 2
    Q = sparse.csr_array(2.1 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1))
    A = sparse.csr_array(np.eye(n)[np.arange(len(X)) % n])
    return qp.infer_precision(A, Q, SIGNS).predict, A[:3]


def places(tree):
    """Return every list and object of the tree with the places of its entries."""
    if not isinstance(tree, (list, dict)):
        return []
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    return [place for key in keys for place in ((tree, key), *places(tree[key]))]


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
    model = qp.GPRegressor(**FIXED).fit(X, F)
    model._centre_ = np.inf
    model.save(tmp_path / "model")
    refuses("its predictions are not finite", qp.load, tmp_path / "model", error=qp.TableError)
