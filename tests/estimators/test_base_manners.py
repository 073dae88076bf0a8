"""Manners that estimators share: scikit-learn's contract, weights, restarts and warnings."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import qpruntime as qp
from tests.tools.cases import every_case, refuses
from tests.tools.contract import check_contract

FIXED = ConstantKernel(1.5, "fixed") * RBF(1.3, "fixed")
RNG = np.random.default_rng(8)
X = np.sort(RNG.uniform(0.0, 8.0, 40))[:, None]
F = 2.0 * np.sin(X[:, 0])
REALS = F + 0.15 * RNG.standard_normal(40)
REALS[[5, 17, 30]] += [6.0, -9.0, 4.0]
COUNTS = RNG.poisson((1.5 + np.sin(X[:, 0])) ** 2)
LABELS = F + RNG.standard_normal(40) > 0.0
NEW = np.array([[0.5], [3.0], [5.5], [11.0]])
EXPOSURE = {"exposure": np.linspace(0.5, 2.0, 40)}

MODELS = [
    (qp.GPClassifier(method="ep"), LABELS),
    (qp.GPPoissonRegressor(method="ep"), COUNTS),
    (qp.GPRobustRegressor(method="ep"), REALS),
]


class Rounded(qp.GPPoissonRegressor):
    """Takes any target, so that scikit-learn's generic checks run to their ends."""

    def fit(self, X, y, exposure=None, sample_weight=None):
        if np.asarray(y).dtype.kind in "fiu":
            y = np.abs(np.round(np.asarray(y)))
        return super().fit(X, y, exposure, sample_weight)


TWO_SITES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a weight of 2 is one site with the squared likelihood, two equal rows are two sites on "
        "one latent value: EP approximates the second less well, and the evidence differs"
    )
}
WEIGHTS_OF_JOINT_CLASSES = dict.fromkeys(
    ["check_sample_weights_list", "check_sample_weight_equivalence_on_dense_data"],
    "weights other than 0 and 1 are refused",
)
FEW = qp.Search(max_iter=5)
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (qp.GPClassifier(optimize=FEW), TWO_SITES),
        pytest.param(Rounded(optimize=FEW), TWO_SITES, marks=SLOW),
        pytest.param(
            qp.GPRobustRegressor(method="ep", optimize=qp.Search(max_iter=1)), TWO_SITES, marks=SLOW
        ),
        pytest.param(Rounded(link="exp", optimize=FEW), TWO_SITES, marks=SLOW),
        pytest.param(qp.GPRegressor(method="ep", optimize=False), {}, marks=SLOW),
        pytest.param(qp.GPOrdinal(method="ep", optimize=False), TWO_SITES, marks=SLOW),
        pytest.param(
            qp.GPClassifier(ConstantKernel(4.0) * RBF(1.0), multi_class="joint"),
            WEIGHTS_OF_JOINT_CLASSES,
            marks=SLOW,
        ),
    ],
)
def test_scikit_learn_contract(estimator, expected):
    check_contract(estimator, expected)


@every_case(
    ("model", "y", "given"),
    [
        (qp.GPClassifier(method="ep"), LABELS, {}),
        (qp.GPClassifier(method="qp"), LABELS, {}),
        (qp.GPPoissonRegressor(link="square"), COUNTS, EXPOSURE),
        (qp.GPPoissonRegressor(link="exp"), COUNTS, EXPOSURE),
        (qp.GPRobustRegressor(method="ep", noise_bounds={"nu": (1.0, 30.0)}), REALS, {}),
    ],
)
@every_case("objective", ["evidence", "loo"])
@pytest.mark.filterwarnings("ignore::qpruntime.ConvergenceWarning")
def test_rows_of_weight_0_are_not_learnt_from(model, y, given, objective):
    """Bit by bit, so the first steps tell."""
    keep = np.arange(40) % 5 != 0  # two of the outliers go
    model.set_params(optimize=qp.Search(objective, max_iter=3))
    model.fit(X, y, sample_weight=keep.astype(float), **given)
    theta, latent = model.optimum_.theta, model.latent(NEW)
    if given:
        np.testing.assert_array_equal(model.exposure_, given["exposure"][keep])
    model.fit(X[keep], y[keep], **{name: value[keep] for name, value in given.items()})
    np.testing.assert_array_equal(theta, model.optimum_.theta)
    np.testing.assert_array_equal(latent, model.latent(NEW))


@every_case(
    "weights, words",
    [(-np.ones(40), "[Nn]egative"), (np.zeros(40), "zero"), (np.full(40, np.nan), "NaN")],
)
@every_case("model, y", MODELS)
def test_weights_that_are_refused(model, y, weights, words):
    refuses(words, model.fit, X, y, error=ValueError, sample_weight=weights)


def test_vb_takes_no_weights():
    with pytest.raises(qp.InputError, match='"vb" takes neither weights'):
        qp.GPPoissonRegressor(FIXED, method="vb").fit(X, COUNTS, sample_weight=np.full(40, 2.0))


@every_case("model, y", MODELS)
def test_running_out_warns_the_caller(model, y):
    own = type(model)
    words = r"evidence was not maximised.*max_iter"
    with pytest.warns(qp.ConvergenceWarning, match=words) as caught:
        searched = own(method="ep", optimize=qp.Search(max_iter=1)).fit(X, y)
    assert caught[0].filename == __file__
    assert searched.optimum_.n_iterations == 1
    with pytest.warns(qp.ConvergenceWarning, match="not converged after [12] sweeps") as caught:
        settled = own(FIXED, method="ep", optimize=False, max_sweeps=1).fit(X, y)
    assert caught[0].filename == __file__
    assert not any(getattr(one, "converged_", False) for one in (searched, settled))


@pytest.mark.filterwarnings("ignore::qpruntime.ConvergenceWarning")
@every_case("model, y", MODELS[1:])
def test_restarts_are_sorted_and_each_evaluation_is_told(model, y, capsys):
    seen = []
    search = qp.Search(
        restarts=2, max_iter=6, callback=lambda theta, value: seen.append(theta.size)
    )
    own = type(model)(method="ep", optimize=search, n_jobs=2, random_state=1, verbose=1).fit(X, y)
    scores = [optimum.score for optimum in own.optima_]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert own.optimum_ is own.optima_[0]
    assert len(seen) == sum(optimum.n_evaluations for optimum in own.optima_)
    assert set(seen) == {own.optimum_.theta.size}
    assert capsys.readouterr().err.count("evidence") == len(seen)
