"""Lip cancer of 56 districts beside NUTS of numpyro, with the same model and priors.

    python -m scripts.studies districts
    python -m scripts.studies districts --report

Cases are Poisson with the log of those expected as offset, a coefficient of people outdoors in
tens of per cent, and BYM2. The sampler has the field by eigenvectors of the graph's Laplacian,
which shares nothing with our factors. GPBoost and statsmodels have no effects of areas. Data are
in docs/data/lip_cancer.json, with their source.
"""

import json
import time
from argparse import Namespace
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.effects import Areas, EffectsModel, Fixed
from scripts.records import RESULTS, Records
from scripts.studies.effects_sets import summary, two_chains

Array = NDArray[np.float64]
ONE_THREAD = True
_DRAWS = 10_000
_FILE = Path(__file__).parents[2] / "docs" / "data" / "lip_cancer.json"
_DISTRICTS = json.loads(_FILE.read_text())["districts"]
_PLACE = {row["district"]: k for k, row in enumerate(_DISTRICTS)}
CASES, EXPECTED, OUTDOORS = (
    np.array([row[name] for row in _DISTRICTS], dtype=float)
    for name in ("cases", "expected", "outdoors")
)
NEIGHBOURS = sorted(
    {
        tuple(sorted((k, _PLACE[name])))
        for k, row in enumerate(_DISTRICTS)
        for name in row["neighbours"]
    }
)
DATA = {"district": np.arange(56), "outdoors": OUTDOORS / 10.0, "expected": EXPECTED}


def ours(correction: str | None) -> dict[str, Any]:
    """Rows of a summary, and of districts: mean and sd of the effect, P(effect > 0)."""
    terms = [Fixed("outdoors"), Areas("district", NEIGHBOURS)]
    model = EffectsModel(terms, "poisson", exposure="expected", correction=correction)
    model.fit(DATA, CASES).summary()
    begin = time.process_time()
    table = model.fit(DATA, CASES).summary(profile=correction is not None)
    effects = model.effects("bym2(district)", above=0.0)
    seconds = time.process_time() - begin
    rows = {name.replace("bym2(district): ", ""): list(numbers.values()) for name, numbers in table}
    found = np.asarray(effects.values)[:, [0, 1, -1]]
    return {"rows": rows, "districts": found.T.tolist(), "cpu_seconds": seconds}


def basis() -> Array:
    """B with covariance B B' = R^+, for the Laplacian R scaled to a geometric mean of 1."""
    R = np.zeros((56, 56))
    for i, j in NEIGHBOURS:
        R[[i, j], [j, i]] -= 1.0
        R[[i, j], [i, j]] += 1.0
    values, vectors = np.linalg.eigh(R)
    B = vectors[:, 1:] / np.sqrt(values[1:])
    return B / np.exp(0.5 * np.log(np.square(B).sum(axis=1)).mean())


def nuts() -> dict[str, Any]:
    """The same, sampled in two chains."""
    import jax
    import numpyro
    import numpyro.distributions as dist

    B, x = basis(), DATA["outdoors"]
    centre, scale = x.mean(), x.std()

    def model() -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 10.0))
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 100.0))
        # P(sd > 3) = .01
        sd = numpyro.sample("sd", dist.Exponential(-np.log(0.01) / 3.0))
        share = numpyro.sample("share", dist.Uniform(0.0, 1.0))
        near = B @ numpyro.sample("near", dist.Normal(0.0, 1.0).expand([55]))
        own = numpyro.sample("own", dist.Normal(0.0, 1.0).expand([56]))
        effect = sd * (jax.numpy.sqrt(share) * near + jax.numpy.sqrt(1.0 - share) * own)
        numpyro.deterministic("effect", effect)
        eta = jax.numpy.log(EXPECTED) + intercept + b * (x - centre) / scale + effect
        numpyro.sample("y", dist.Poisson(jax.numpy.exp(eta)), obs=CASES)

    drawn, seconds = two_chains(model, 2000, _DRAWS, target_accept_prob=0.9)
    b = drawn["b"] / scale
    columns = {
        "intercept": drawn["intercept"] - b * centre,
        "outdoors": b,
        "sd": drawn["sd"],
        "phi": drawn["share"],
    }
    effect = drawn["effect"]
    districts = [effect.mean(axis=0), effect.std(axis=0), (effect > 0.0).mean(axis=0)]
    # Of one half of the draws beside the other: what the sampler itself does not know.
    halves = [(part > 0.0).mean(axis=0) for part in np.split(effect, 2)]
    return {
        "rows": summary(columns),
        "districts": [one.tolist() for one in districts],
        "halves": float(np.abs(halves[0] - halves[1]).max()),
        "cpu_seconds": seconds,
        "draws": 2 * _DRAWS,
    }


MODELS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "EP": ("", lambda: ours(None)),
    "EP with pairs, profiled": ("", lambda: ours("pairs")),
    "NUTS": ("numpyro", nuts),
}


def report(records: dict[Any, dict[str, Any]]) -> None:
    """Print a table, and how far districts are from the sampler's."""
    print("| model | outdoors, 10 % | sd | share of neighbours | CPU s |")
    print("| --- | --- | --- | --- | --- |")
    for key, one in records.items():
        cells = ["{:.3f} ± {:.3f}".format(*one["rows"][k][:2]) for k in ("outdoors", "sd", "phi")]
        print(f"| {key.model} | {' | '.join(cells)} | {one['cpu_seconds']:.2f} |")
    right = records.get(("NUTS",))
    if right is None:
        return
    mean, std, above = (np.array(one) for one in right["districts"])
    print(f"\nP(effect > 0) of half the draws beside the other: {right['halves']:.4f}")
    for key, one in records.items():
        if key.model == "NUTS":
            continue
        m, s, p = (np.array(part) for part in one["districts"])
        print(
            f"{key.model}: means {np.abs((m - mean) / std).max():.3f} sds, sds "
            f"{np.abs(s / std - 1.0).max():.3f}, P(effect > 0) {np.abs(p - above).max():.4f}"
        )


OPTIONS = {"kept": {"default": RESULTS / "districts.jsonl"}, "report": {}}


def main(options: Namespace) -> None:
    """Run what is missing."""
    records = Records(options.kept, "model")
    if not options.report:
        for model, (library, run) in MODELS.items():
            if (model,) in records or (library and not find_spec(library)):
                continue
            records.keep((model,), run())
    report(records.records)
