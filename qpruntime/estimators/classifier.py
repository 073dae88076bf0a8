"""scikit-learn classifier over `infer`: data and labels in, class probabilities out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, ndtri
from sklearn.base import ClassifierMixin
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from qpruntime import likelihoods
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import central_levels, choice, flag, shown
from qpruntime.errors import InputError, NumericalError
from qpruntime.estimators.averaging import is_integrated, mixed_normals, mixed_probabilities
from qpruntime.estimators.base import (
    GPEstimator,
    begun,
    extended,
    fitted_table,
    settings_to_fit,
    table_to_fit,
    with_inducing,
)
from qpruntime.estimators.input_data import (
    check_announced,
    check_labels,
    check_signs,
    classes_of,
    fit_data,
    signs_of,
    weighed,
)
from qpruntime.estimators.joint_classifier import (
    JointClasses,
    fit_joint,
    is_joint,
    joint_settings,
    near_best,
    no_parts,
)
from qpruntime.estimators.likelihood_parameters import learnt_by_name
from qpruntime.estimators.monotone import one_direction
from qpruntime.estimators.prior_mean import OfClasses, Target
from qpruntime.estimators.prior_mean_selection import boosted_classes
from qpruntime.estimators.process import all_of, commit, draft_of, renewed
from qpruntime.inference.corrections.corrected import Correction
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.multiclass.posterior import ClassPosterior
from qpruntime.inference.posterior import Posterior
from qpruntime.learning.inducing_points import sample
from qpruntime.learning.inputs import Data, RowGroups
from qpruntime.learning.optimise import Optimum
from qpruntime.learning.options import Integrate, settings_of
from qpruntime.likelihoods import Likelihood
from qpruntime.predictive.corrected import signs_by_grid
from qpruntime.predictive.distribution import log_probabilities, quantile, scores
from qpruntime.projection.projector import Inference, Projector
from qpruntime.projection.table import Table

__all__ = ["GPClassifier", "coupled", "coupling_of", "statements"]


class _ClassifierAttributes(GPEstimator):
    """Attributes that `fit` sets; a dataclass takes annotations of its own class for parameters."""

    classes_: NDArray[Any]
    kernel_: Kernel | tuple[Kernel, ...]
    posterior_: Posterior | tuple[Posterior, ...] | ClassPosterior
    coupling_: float
    exponent_: float
    optimum_: Optimum | tuple[Optimum | None, ...] | None
    optima_: tuple[Optimum, ...] | tuple[tuple[Optimum, ...], ...]
    _likelihood_: Likelihood | None


@restorable("gp-classifier/1", root=True)
@dataclass(kw_only=True, eq=False, repr=False, match_args=False)
class GPClassifier(ClassifierMixin, _ClassifierAttributes):
    """Gaussian-process classification by QP or EP.

    Two classes have one Gaussian process. K > 2 classes have K of them, each class against the
    rest, or one joint model with ``multi_class="joint"``.

    Parameters
    ----------
    kernel : scikit-learn kernel, "auto" or None
        By default a constant plus Matérn 5/2 in units of each feature's spread, so that features
        need no scaling. It has one length-scale, or one for each feature (ARD) if that raises the
        evidence by more than the number of features. The variances have a weak prior, which is not
        part of `Optimum.value`; see ``docs/defaults.md``. "auto" tries a squared exponential as
        well and takes the better of the two, unless only the first is fitted by states. A kernel
        object is used unchanged.
    likelihood : str, Likelihood or None
        ``"probit"``; ``"logistic"``; ``"heaviside"``, the sign of the latent function without
        noise; ``"noisy-probit"`` if some labels are wrong; or your own likelihood of the labels -1
        and +1. The share of wrong labels is learnt for two classes, or fixed by
        ``"noisy-probit(flip=0.05)"``. By default the likelihood of the table, or ``"probit"``
        without a table.
    method : {"qp", "ep", "wp", "vb"}
        Inference of the final posterior; "vb" maximises its own bound of the evidence.
    table : None, "exact", path, name or Table
        Source of sigma* for QP; see `qpruntime.infer`.
    p : float, optional
        Order of method "wp", from 1 to 10.
    monotone : mapping, optional
        Features, by name or number of the column, along which the latent function and the
        probability of the second of two classes rise, +1, or fall, -1: ``{"age": +1}``. The sign of
        the slope is observed at up to 40 rows far from each other; see ``docs/monotone.md``.
    optimize : bool, "evidence", "loo" or Search
        Objective that hyper-parameters maximise: "evidence", the same as True, or "loo", the
        leave-one-out density. False learns nothing. `qpruntime.Search` has restarts,
        limits and a callback.
    tol, max_sweeps
        Tolerance and limit of sweeps of every EP or QP run; see `qpruntime.infer`.
    correction : {None, "blend", "fact", "tilt", "sample"}
        Correction of predictions for the non-normal shape of marginals, by `Posterior.marginals`.
        It applies to means, variances, probabilities, quantiles and intervals. None is the
        published posterior of `method`. Corrected predictions score no better and cost more per
        point, but their intervals have the right coverage; see ``docs/bench-posterior.md``. Classes
        fitted jointly have only ``"ratio"``, for few points: ratios of evidences with one row more,
        see `ClassPosterior.predict_log_proba`.
    inducing : None, int, "auto", "judged", "variance", array-like, shape (M, d), or Inducing
        Number or places of M inducing points. Time grows with N M^2 and memory with N M. None is
        the dense engine, whatever it costs. "auto" is dense up to 1500 rows and may take ranks of
        features, or a few of many features. Above 1500 rows it chooses kernel and engine by
        hold-out; "judged" does so from 60 rows on: ``docs/defaults.md``. "variance" takes as many
        points as the prior variance needs: ``docs/million-rows.md``. `qpruntime.Inducing` has
        further options, such as power, budget, memory and checkpoint.
    solver : {"auto", "dense", "markov"} or Series
        "markov" fits one column with a Markov kernel in time linear in N; see
        `qpruntime.infer_series`. "auto" takes it from 300 rows on if it can. `qpruntime.Series`
        lets it approximate squared exponentials, which have the dense solver otherwise.
    prior_mean : estimator, "auto" or None
        Any scikit-learn classifier as prior mean of the latent function. Its cross-fitted
        probabilities, by five folds, are moved to the latent scale and multiplied by a learnt
        slope; the Gaussian process models the remainder. "auto" uses boosting if the
        leave-one-out density gains by it in a first stage, with kernels learnt from 500 rows. It
        does so above 1500 rows where kernel and engine are selected; ``inducing="judged"`` selects
        from 200 rows on.
    n_jobs : int, optional
        Threads for restarts, as in joblib, and for passes over rows.
    random_state : int, RandomState, Generator or None
        Seed of restarts, and of samples and clusters of rows with inducing points.
    verbose : int
        If not 0, print every evaluation of the objective to stderr, with parameters by their names
        in ``kernel_.get_params()``. Parameters of the default kernel are in units of features'
        spreads. If kernel and engine are chosen, from 1500 rows on, print stages and the time left.

    multi_class : {"one_vs_rest", "joint"}
        Model of K > 2 classes. "joint" is the multinomial probit: the label is the class whose
        latent value plus unit noise is the largest. It has one evidence and one kernel for all
        classes, and probabilities use the whole covariance of the latent values. It supports the
        probit, methods "qp" and "ep" and weights 0 and 1. `inducing` is a number or points; by
        default there are some from 1500 rows on: see ``docs/classes.md``.
    hyperparameters : {"mode", "integrate"} or Integrate
        "integrate" averages predictions over hyper-parameters, weighted by evidence and prior,
        instead of using the mode: see ``docs/uncertain-hyperparameters.md``. A fit of 200 rows with
        its predictions takes some 10 times as long. `kernel_` and `posterior_` stay those of the
        mode. `qpruntime.Integrate` has the options.

    Attributes
    ----------
    classes_ : ndarray, shape (K,)
        The labels; of two, the second is the positive class.
    kernel_, posterior_ : scikit-learn kernel and Posterior
        Kernel with the fitted parameters, and posterior at the training points; K-tuples for K > 2
        classes. A joint fit has one kernel and one `ClassPosterior`.
    parameters_ : dict
        Parameters of the likelihood by name, including those that were learnt.
    coupling_ : float
        Weight from 0 to 1 of the other classes' processes in a probability of K > 2 classes, chosen
        by leave-one-out probabilities; see `predict_log_proba`. 0 for two classes and joint fits.
    exponent_ : float
        Power to which a joint fit raises class probabilities, chosen by leave-one-out
        probabilities: above 1 if the model is underconfident. 1 for other fits.
    optimum_ : Optimum or None
        The best optimiser run; a K-tuple for K > 2 classes, one if joint.
    optima_ : tuple of Optimum
        Every optimiser run, best first; a K-tuple of such for K > 2 classes, one if joint.
    log_marginal_likelihood_value_ : float
        Log evidence of the posterior, or its bound for "vb"; for K > 2 classes the mean of K, as
        in scikit-learn, or the joint evidence.
    n_iter_ : int
        Optimiser iterations of the longest best run, at least 1.
    table_sha256_ : str or None
        Hash of the table's data, None without a table. A model with a path or a name refits with
        this very table, and raises `TableError` if it is missing. Predictions need the table only
        if it alone defines the likelihood.
    inducing_points_ : ndarray, shape (M, d)
        Inducing points, if there are any; K-tuples for K > 2 classes.
    engine_ : {"dense", "markov", "inducing", "inducing+nearest"}
        Inference engine of the fit.
    stages_ : tuple
        Stages of ``inducing="auto"``: rows, candidate, mean hold-out log density (NaN without
        hold-out), and operations up to then.
    nearest_ : int
        Number of nearest rows that correct each prediction; if not 0, the model keeps its rows.
    integrated_ : Integrated or None
        Nodes of the hyper-parameters, with weights, effective sample size and Pareto's k, of
        ``hyperparameters="integrate"``; a K-tuple for K > 2 classes.
    prior_mean_ : CrossFitted or None
        The prior mean of the fit: the `estimators` of the folds, `slope` and `shift`.
    slopes_ : Slopes or None
        Points at which the sign of the slope was observed; they are the last rows of `posterior_`.
    warp_ : callable or None
        Map of features to ranks, if the fit chose ranks. `kernel_`, `X_train_` and
        `inducing_points_` then are in terms of ranks.
    X_train_ : ndarray, shape (N, d)
        Training points; empty with inducing points.

    See Also
    --------
    qpruntime.GPOrdinal, qpruntime.infer_classes, qpruntime.plotting.CalibrationDisplay

    Examples
    --------
    >>> from qpruntime import GPClassifier
    >>> X = [[-2.0], [-1.0], [-0.5], [0.5], [1.0], [2.0]]
    >>> clf = GPClassifier().fit(X, ["no", "no", "no", "yes", "yes", "yes"])
    >>> clf.predict([[-1.5], [1.5]]).tolist()
    ['no', 'yes']
    """

    likelihood: str | Likelihood | None = None
    method: Inference = "qp"
    p: float | None = None
    monotone: Mapping[str | int, int] | None = None
    multi_class: Literal["one_vs_rest", "joint"] = "one_vs_rest"
    hyperparameters: Literal["mode", "integrate"] | Integrate = "mode"

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> GPClassifier:
        """Fit hyper-parameters and posterior.

        Parameters
        ----------
        X : array-like, shape (N, d)
        y : array-like, shape (N,)
            Labels of two or more classes.
        sample_weight : array-like, shape (N,), optional
            Powers of the single likelihoods, not negative; rows of weight 0 are dropped. The
            leave-one-out density sums weight times ``log p(y_i | y_-i)``, all of row i left out.
            Weights other than 0 and 1 are not for method "vb", nor for tables of method "wp".
        groups : array-like, shape (N,), optional
            Labels of groups, such as subjects, whose rows are left out together wherever rows that
            are left out choose something: folds of `prior_mean`, kernels and engines, `coupling_`
            and `exponent_`. By default rows with equal features are a group.

        Raises
        ------
        TableError
            If the table is missing, or not the one that the model was fitted with before.
        ValueError
            If X or y is not usable; a subclass, `InputError`, where the check is ours.

        Warns
        -----
        ConvergenceWarning
            If the optimiser or the sites have not settled, or if the kernel given cannot learn: its
            matrix is diagonal or constant to 1e-6 at its own parameters, the objective does not
            change with them, or a bound holds one back. If there are no restarts, one more run then
            starts from the distances between rows; both are in ``optima_``.
        """
        jointly = choice(self.multi_class, "multi_class", ("one_vs_rest", "joint")) == "joint"
        # Options that cannot act are refused before data are looked at; of joint fits, later.
        settings = settings_of(self) if jointly else settings_to_fit(self)
        projector = Projector(self.likelihood, self.method, table_to_fit(self), self.p)
        check_signs(projector.likelihood)
        likelihood, draft = projector.likelihood, draft_of(self)
        # A placeholder for missing code neither predicts nor can be pickled.
        draft._likelihood_ = likelihood if likelihood.has_density else None
        points, labels = fit_data(draft, X, y, sample_weight, ensure_min_samples=2)
        check_labels(labels)
        weights, points, labels = weighed(sample_weight, points, labels, groups=groups)
        draft.classes_ = classes_of(labels, "GPClassifier")
        one_direction(self.monotone, draft.classes_.size)
        if draft.classes_.size > 2 and jointly:
            if weights is not None:
                raise InputError(
                    f'sample weights must be 0 or 1 with multi_class="joint", got '
                    f"{float(weights[np.argmax(weights != 1.0)]):g}: repeat a row for a whole "
                    'weight, or use multi_class="one_vs_rest"'
                )
            codes = np.searchsorted(draft.classes_, labels)
            fit_joint(draft, points, codes, projector, joint_settings(self))
            draft.coupling_ = 0.0
            return commit(self, draft)
        if jointly:
            # Two classes are one process either way, with the options of one.
            settings = settings_to_fit(self)
        # Rows that are read in parts may be many, and are made floats chunk by chunk.
        signs = signs_of(labels, draft.classes_, np.int8 if points.stored else np.float64)
        prior = np.zeros(len(labels))

        def target() -> Target:
            codes = np.searchsorted(draft.classes_, labels)
            score = OfClasses(draft.classes_.size, likelihood.name == "logistic")
            return Target(codes, weights, score, True, boosted_classes)

        learn = learnt_by_name(self, likelihood) if len(signs) == 1 else {}
        fits = draft._train(
            [Data(points, y, projector, prior, weights, learn=learn) for y in signs],
            settings,
            target,
        )
        if learn:
            draft._likelihood_ = fits[0].likelihood
        draft.coupling_, draft.exponent_ = 0.0, 1.0
        if draft.classes_.size > 2:
            codes = np.searchsorted(draft.classes_, labels)
            draft.coupling_ = coupling_of(all_of(draft.posterior_), codes, weights, points.groups)
        return commit(self, draft)

    @with_inducing
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> GPClassifier:
        """Fit to the first part of the rows; add later parts to the posterior, with `inducing`.

        The first call is `fit`: kernel and inducing points are learnt from its rows, which should
        be a fair sample. Later calls only add sites and never see earlier rows again, so that
        memory does not grow; docs/bench-cost.md says how far posteriors drift.

        Parameters
        ----------
        X : array-like, shape (n, d)
        y : array-like, shape (n,)
            Labels, of the first part all there will be.
        classes : array-like, optional
            All labels, as scikit-learn hands them over: the first part must have rows of each, and
            later calls name the same.
        sample_weight : array-like, shape (n,), optional

        Raises
        ------
        ValueError
            As of `fit`; also for labels that the first part did not have.
        """
        no_parts(self.multi_class, y if classes is None else classes)
        if not begun(self):
            if classes is not None:
                check_announced(classes, y)
            return self.fit(X, y, sample_weight)
        if classes is not None and set(np.ravel(classes).tolist()) != set(self.classes_.tolist()):
            raise InputError(
                f"classes={shown(np.ravel(classes).tolist())} are not those of the first part, "
                f"{shown(self.classes_.tolist())}, for which kernels were learnt: leave classes "
                "out, or start again with a sklearn.base.clone"
            )
        points, labels = fit_data(self, X, y, reset=False)
        weights, points, labels = weighed(sample_weight, points, labels)
        if (new := np.setdiff1d(labels, self.classes_)).size:
            raise InputError(
                f"labels {new.tolist()} are not among the classes of the first part, "
                f"{self.classes_.tolist()}: fit all rows, or begin with rows of every class"
            )
        signs = signs_of(labels, self.classes_)
        return renewed(self, extended(self, points, signs, weights, self.prior_means(points.rows)))

    @property
    def fitted_likelihood(self) -> Likelihood | None:
        """Likelihood with its fitted parameters; None if it is known from a table alone."""
        return self._likelihood_

    @property
    def parameters_(self) -> dict[str, float]:
        """Parameters of the likelihood, by name."""
        check_is_fitted(self)
        return dict(self._likelihood_.parameters) if self._likelihood_ else {}

    def latent(self, X: ArrayLike, full_covariance: bool = False) -> tuple[Array, Array]:
        """Return the mean and variance of the latent function at `X`.

        Each has shape (T,) for two classes and (T, K) for K > 2. If `full_covariance` is True, the
        second is the covariance of the rows, shape (T, T), or (K, T, T) for K > 2 classes.
        """
        if flag(full_covariance, "full_covariance"):
            return self._jointly(X)
        if is_joint(self):
            mean, covariance = JointClasses(self).latent(self.validate_points(X))
            return mean, np.diagonal(covariance, axis1=1, axis2=2).copy()
        return self._latent_at(X)

    def decision_function(self, X: ArrayLike) -> Array:
        """Score whose normal CDF is p(second class), shape (T,); for K > 2 classes (T, K).

        It is mean / sqrt(1 + variance) for the probit and mean / sqrt(variance) for the heaviside.
        It keeps sign and order where probabilities round to 1/2, or to 0 and 1.
        """
        points = self.validate_points(X)
        if is_joint(self):
            return JointClasses(self).log_probabilities(points, self.correction)
        if self._by_numbers():
            return quantile(*self._log_probabilities(points))
        likelihood, table = self._likelihood_, self._table_if_needed()
        return self._predicted(points, lambda mean, var: scores(likelihood, mean, var, table))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the most probable label at each point, shape (T,), by `decision_function`.

        The first of several where nothing tells them apart.
        """
        score = self.decision_function(X)
        best = np.argmax(score, axis=1) if score.ndim == 2 else (score > 0.0).astype(int)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the class probabilities in the order of ``classes_``, shape (T, K)."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Return log class probabilities, exact where the probabilities underflow, shape (T, K).

        The normaliser of the likelihood under the latent predictive density; for K > 2 classes
        p_c/(1 - p_c)^b, scaled to sum to 1, of the probability p_c of each class against the rest
        and b the `coupling_` that was learnt; jointly those of one model of all classes, to the
        power `exponent_` and scaled to sum to 1, but for ``correction="ratio"``, which has none.
        """
        points = self.validate_points(X)
        if is_joint(self):
            return JointClasses(self).log_probabilities(points, self.correction)
        minus, plus = self._log_probabilities(points)
        if minus.ndim == 1:
            return np.column_stack([minus, plus])
        return coupled(minus, plus, self.coupling_)

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> Array:
        """Return credible intervals of p(second class), (T, 2), or of all classes, (T, K, 2).

        The likelihood needs a `Likelihood.link`, as the probit and the logistic have. There p(y|f)
        is monotone in f, so its quantiles follow from those of the latent function without
        sampling. Intervals of classes fitted jointly come from 2000 fixed draws of the latent
        normal.

        Parameters
        ----------
        X : array-like, shape (T, d)
        level : float
            Between 0 and 1.

        Notes
        -----
        The central interval of p(y|f), with (1 - level)/2 on either side, extended to the
        prediction of `predict_proba` where that lies outside: it has a probability of `level` at
        least. The prediction is the mean of p(y|f), and the mean of a skewed variable can be beyond
        its quantiles: where classes are nearly separable the latent function is large beside the
        noise, p(y|f) is nearly 0 or nearly 1, and its mean is the probability of the second case.
        The median of p(y|f) is the link at the mean of `latent`. With `prior_mean` the latent
        variance also has that of the mean, by the jackknife over its folds; probabilities do not,
        for the slope of the mean is learnt with it.
        """
        tails = central_levels(level)
        points, likelihood = self.validate_points(X), self._likelihood_
        if is_joint(self):
            joint = JointClasses(self)
            p = np.exp(joint.log_probabilities(points, self.correction))
            return joint.intervals(points, tails, p)
        link = likelihood.link if likelihood else None
        if self.classes_.size > 2 or likelihood is None or link is None:
            known = [name for name in likelihoods.names() if likelihoods.get(name).link]
            raise InputError(
                f"predict_interval needs two classes and one of the likelihoods {tuple(known)}"
            )

        def around(ends: Array, plus: Array) -> Array:
            low, high, p = *link(ends).T, np.exp(plus)
            return np.column_stack([np.minimum(low, p), np.maximum(high, p)])

        if is_integrated(self):
            return around(mixed_normals(self, points, tails), self._log_probabilities(points)[1])

        def by_grid(marginals: list[CorrectedMarginals], spread: Array) -> Array:
            ends, middle = marginals[0].quantile(tails), marginals[0].mean[:, None]
            wider = np.sqrt(1.0 + spread / marginals[0].variance)[:, None]
            return around(middle + wider * (ends - middle), signs_by_grid(marginals)[1])

        def finish(mean: Array, variance: Array, spread: Array) -> Array:
            reach = ndtri(tails[1]) * np.sqrt(variance + spread)
            ends = np.column_stack([mean - reach, mean + reach])
            return around(ends, log_probabilities(likelihood, mean, variance)[1])

        return self._predicted(points, finish, self._spread_at(points), by_grid=by_grid)

    def _marginals(self, points: Array, correction: Correction) -> list[CorrectedMarginals]:
        if is_joint(self):
            return list(JointClasses(self).marginals(points, correction))
        return super()._marginals(points, correction)

    def _log_probabilities(self, points: Array) -> tuple[Array, Array]:
        """Return log p(-1) and log p(+1), each (T,) or (T, K)."""
        if is_integrated(self):
            return mixed_probabilities(self, points)
        likelihood, table = self._likelihood_, self._table_if_needed()

        def finish(mean: Array, variance: Array) -> tuple[Array, Array]:
            return log_probabilities(likelihood, mean, variance, table)

        return self._predicted(points, finish, by_grid=signs_by_grid)

    def _by_numbers(self) -> bool:
        """Decide whether probabilities are not those of one normal latent value."""
        return self.correction is not None or is_integrated(self)

    def _table_if_needed(self) -> Table | None:
        """Return the table that the likelihood is known from, if it is known from there alone."""
        return None if self._likelihood_ else fitted_table(self)


# --- One-vs-rest probabilities -------------------------------------------------------------------

#: Rows that are left out, at most: enough for one number.
_ROWS = 2000
#: Values of b, and the rate of its exponential prior.
_GRID, _RATE = np.linspace(0.0, 1.0, 51), 2.0
#: A log density left out is so far from 0: what rounding has left of 1 - p, and of p.
_LEAST, _MOST = 1e-15, 700.0


def coupled(minus: Array, plus: Array, b: float) -> Array:
    """Return log probabilities of classes (T, K) from those of each class against the rest."""
    score = plus - b * minus
    return score - logsumexp(score, axis=1, keepdims=True)


def statements(label_log_p: Sequence[Array], codes: NDArray[np.intp]) -> tuple[Array, Array]:
    """Return log(1 - p) and log p of each class against the rest, both of shape (T, K).

    ``label_log_p[c]`` (T,) is the log probability under process c that a row is, or is not, of
    class c, whichever is true by its class in `codes`.
    """
    minus, plus = np.empty((2, len(codes), len(label_log_p)))
    for c, log_p in enumerate(label_log_p):
        known = np.clip(log_p, -_MOST, -_LEAST)
        log_q = np.log(-np.expm1(known))
        true = codes == c
        plus[:, c], minus[:, c] = np.where(true, known, log_q), np.where(true, log_q, known)
    return minus, plus


def coupling_of(
    posteriors: Sequence[Any],
    codes: NDArray[np.intp],
    weights: Array | None,
    groups: RowGroups | None = None,
) -> float:
    """Return b, from 0 to 1 in steps of 1/50, by log probabilities of classes of rows left out.

    Their sum has to gain by two nats for each unit of b, and b is the least that is within one
    standard error of the best: few rows say little, and hyper-parameters were learnt from the same.
    If the engine cannot leave groups out, b is 0.

    Parameters
    ----------
    posteriors : sequence of Posterior
        Of each class against the rest, at the rows.
    codes : ndarray of int, shape (N,)
        Class of each row.
    weights : ndarray, shape (N,), optional
    groups : RowGroups, optional
        Rows that are left out together.
    """
    sampled = sample(len(codes), _ROWS, np.random.default_rng(0))
    sampled_codes = codes[sampled]
    chosen = None if len(sampled) == len(codes) else sampled
    try:
        label_log_p = [
            posterior.loo(chosen) if groups is None else groups.left_out(posterior, chosen)
            for posterior in posteriors
        ]
    except (InputError, NumericalError):
        return 0.0
    minus, plus = statements(label_log_p, sampled_codes)
    mass = np.ones(len(sampled)) if weights is None else weights[sampled]
    rows = np.arange(len(sampled))
    lost = np.array([-mass * coupled(minus, plus, b)[rows, sampled_codes] for b in _GRID])
    return float(_GRID[np.argmax(near_best(lost, _RATE * _GRID, groups, sampled)[1])])
