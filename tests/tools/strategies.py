"""Hypothesis strategies: whatever users may pass where an array, a number or a word is asked for.

`dressed` gives the same numbers in other clothes, all of which have to be understood or refused;
`spoilt` gives arrays that hold something impossible; `junk` gives objects that are no numbers.
"""

import importlib
import tempfile
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import scipy.sparse
from hypothesis import strategies as st


class NoNumber:
    """An element that raises when it is converted."""

    def __float__(self):
        raise ZeroDivisionError("no number")


class Hostile(NoNumber):
    """Raises whatever is asked of it."""

    def __array__(self, *args, **kwargs):
        raise RuntimeError("no array")

    def __len__(self):
        raise KeyError("no length")


def _pandas():
    try:
        return importlib.import_module("pandas")
    except ModuleNotFoundError:
        return None


def _mapped(a):
    if not a.size:
        return a
    with tempfile.TemporaryFile() as file:
        file.write(a.tobytes())
        file.flush()
        return np.memmap(file, a.dtype, "r", 0, a.shape)


def _matrix(a):
    with warnings.catch_warnings(action="ignore"):  # numpy advises against them
        return np.matrix(a) if a.ndim == 2 else a


def _frozen(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def _wide(a):
    """A view of every second column of a wider array."""
    return np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a


def _frame(a):
    pandas = _pandas()
    if pandas is None or a.ndim not in (1, 2):
        return a
    return pandas.Series(a) if a.ndim == 1 else pandas.DataFrame(a)


def _nullable(a):
    pandas = _pandas()
    return a if pandas is None or a.ndim != 1 else pandas.Series(a, dtype="Float64")


def _objects(kind):
    return lambda a: np.array([kind(v) for v in a.ravel().tolist()], object).reshape(a.shape)


#: The same numbers in other clothes.
CLOTHES = {
    "float64": lambda a: a,
    "float32": lambda a: a.astype(np.float32),
    "float16": lambda a: a.astype(np.float16),
    "long double": lambda a: a.astype(np.longdouble),
    "big-endian": lambda a: a.astype(">f8"),
    "Fortran order": np.asfortranarray,
    "reversed": lambda a: a[::-1].copy()[::-1] if a.ndim else a,
    "strided": _wide,
    "read-only": _frozen,
    "memory map": _mapped,
    "list": lambda a: a.tolist(),
    "masked, nothing hidden": lambda a: np.ma.masked_array(a, mask=np.zeros(a.shape, bool)),
    "matrix": _matrix,
    "pandas": _frame,
    "pandas with NA": _nullable,
    "objects": lambda a: a.astype(object),
    "fractions": _objects(Fraction),
    "decimals": _objects(Decimal),
}
#: Clothes that hide or change something: to be refused, never to be read as plain numbers.
DISGUISES = {
    "complex": lambda a: a + 1j,
    "text": lambda a: a.astype(str),
    "text objects": lambda a: a.astype(str).astype(object),
    "bytes": lambda a: a.astype("S32"),
    "masked": lambda a: np.ma.masked_array(a, mask=np.ones(a.shape, bool)),
    "sparse": lambda a: scipy.sparse.csr_array(np.atleast_2d(a) if a.ndim < 3 else a[..., 0]),
    "dates": lambda a: a.astype("M8[s]"),
    "intervals": lambda a: a.astype("m8[s]"),
    "record": lambda a: np.zeros(a.shape, [("x", "f8")]),
    "huge integers": lambda a: np.full(a.shape, 10**400, dtype=object),
    "None": lambda a: np.full(a.shape, None, dtype=object),
    "hostile objects": lambda a: np.array([NoNumber()] * a.size, object).reshape(a.shape),
    "hostile": lambda a: Hostile(),
    "empty": lambda a: np.empty((0,) * a.ndim),
    "a dimension more": lambda a: np.stack([a] * 3)[None],
    "ragged": lambda a: [[1.0], [1.0, 2.0], 3.0],
    "set": lambda a: {1.0, 2.0},
    "generator": lambda a: (v for v in a.ravel()),
    "not a number": lambda a: np.full(a.shape, np.nan),
    "infinite": lambda a: np.full(a.shape, -np.inf),
}

JUNK = [
    *(None, "", "x", "\0", "\ud800", "a" * 5000, b"qp", "/", "/dev/null", "nan", "1"),
    *(np.nan, np.inf, -np.inf, -1, 0, -0.0, 0.3, 5e-324, 1e308, 10**400, 2**63, -(2**63), 1j),
    *(True, False, np.float32(0.5), np.int64(3), np.uint8(255), Decimal("0.5"), Fraction(1, 3)),
    *(
        *([], [1], (0, 1), (np.nan, 1), (1, 2, 3), ("a", "b"), {}, {"a": 1}, set(), object()),
        Hostile(),
    ),
    *(Hostile(), np.ones(3), np.array(0.5), np.array([]), len, float, slice(1), ...),
]


def dressed(array):
    """The numbers of `array` in any clothes."""
    array = np.asarray(array, dtype=float)
    return st.sampled_from(sorted(CLOTHES)).map(lambda name: CLOTHES[name](array))


def disguised(array):
    """Something of the shape of `array` that has to be refused."""
    array = np.asarray(array, dtype=float)
    return st.sampled_from(sorted(DISGUISES)).map(lambda name: DISGUISES[name](array))


def junk():
    """Anything but a sensible argument, mostly."""
    return st.one_of(
        st.sampled_from(JUNK),
        st.floats(),
        st.integers(),
        st.text(max_size=20),
        st.binary(max_size=8),
    )


@st.composite
def spoilt(draw, array):
    """`array` with a few entries replaced by extreme or impossible ones."""
    array = np.array(array, dtype=float)
    extremes = st.one_of(
        st.floats(),
        st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 1e-308, 1e154, 1e155, 1.7e308, -1.7e308]),
    )
    for _ in range(draw(st.integers(1, 3))):
        if array.size:
            array.flat[draw(st.integers(0, array.size - 1))] = draw(extremes)
    return array


def any_array(array):
    """An argument in the place of `array`, good or bad."""
    return st.one_of(dressed(array), disguised(array), spoilt(array), junk())


@st.composite
def problems(draw, largest=8):
    """A Gram matrix, labels of both kinds, counts, and a generator to go on with."""
    n = draw(st.integers(1, largest))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = rng.standard_normal((n, draw(st.integers(1, 3))))
    if draw(st.booleans()):
        X = X[rng.integers(0, n, n)]
    variance = 10.0 ** draw(st.floats(-6, 12))
    distance = ((X[:, None] - X) ** 2).sum(-1)
    K = variance * np.exp(-0.5 * distance / 10.0 ** (2.0 * draw(st.floats(-3, 4))))
    return K, rng.choice([-1.0, 1.0], n), rng.poisson(10.0 ** rng.uniform(-1, 4), n).astype(float)
