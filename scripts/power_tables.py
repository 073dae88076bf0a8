"""Likelihoods to a power, whose tables ship with the package, and the commands that build those.

    python scripts/power_tables.py            # print the commands
    python scripts/power_tables.py --build    # run them, minutes each
    python scripts/power_tables.py --verify   # check what ships against the second rule

Sparse inference takes the power 1/2 by default, whose moments have no closed form: looked up they
cost 0.2 us, integrated 5 us, and 20 us for sigma*. Beyond the table they are integrated.

Student's t to a power is a t with other degrees of freedom and another scale: the table at unit
scale of the 1.5 that come of 4 serves the power 1/2 of every scale, also where that is learnt.
"""

import argparse
import math
import subprocess
import sys
from pathlib import Path

from qpruntime._special import log_ndtr
from qpruntime.likelihoods import Likelihood, get
from qpruntime.projection.open import scaled_path, shipped_path, shipped_scaled

ROOT = Path(__file__).parents[1]
POWER = 0.5
#: Ends of the axes: fits reach prior standard deviations of 14, and means are rarely so far out.
AXES = ("--mu-range", "-10", "10", "--log10-sigma-range", "-2", "3")
NAMES = ("probit", "logistic")
#: Degrees of freedom of the table at unit scale.
FREEDOM = 1.5


def probit_log_prob(f, y, theta):
    return theta[0] * log_ndtr(y * f)


def logistic_log_prob(f, y, theta):
    x = y * f
    return -theta[0] * (math.log1p(math.exp(-x)) if x > 0.0 else math.log1p(math.exp(x)) - x)


def _raised(log_prob, name):
    return Likelihood.from_log_prob(
        log_prob,
        name=f"{name}-power",
        theta={"power": POWER},
        outcomes=[-1, 1],
        log_concave=True,
        mirror=True,
        landmarks=[0.0],
    )


probit = _raised(probit_log_prob, "probit")
logistic = _raised(logistic_log_prob, "logistic")


def commands(verify=False):
    """One command for every table."""
    tablegen = [sys.executable, "-m", "tablegen"]
    for name in NAMES:
        code, path = f"scripts.power_tables:{name}", str(shipped_path(name, POWER))
        if verify:
            yield [*tablegen, "verify", path, "--likelihood", code]
        else:
            build = ["build", "--likelihood", code, "--preset", "surfaces", *AXES]
            yield [*tablegen, *build, "--output", path, "--force"]


def student_t(verify=False):
    """Build or verify the table at unit scale."""
    from tablegen.surfaces import scaled

    path = scaled_path("student-t", FREEDOM)
    if verify:
        table = shipped_scaled("student-t", FREEDOM)
        found = scaled.certify(table.likelihood, table.metadata, table.values, seed=1)
        if missed := scaled.problems(found, scaled.TOLERANCE):
            raise SystemExit(f"{path}: {missed[0]}")
    else:
        found = scaled.build(get("student-t", nu=FREEDOM, scale=1.0), path).certificate
    worst = max(found[name]["max_relative_error"] for name in scaled.NAMES)
    print(f"{path.name}: {path.stat().st_size} bytes, errors at most {worst:.2g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--verify", action="store_true")
    wanted = parser.parse_args()
    for command in commands(wanted.verify):
        print(" ".join(command))
        if wanted.build or wanted.verify:
            subprocess.run(command, check=True, cwd=ROOT)
    if wanted.build or wanted.verify:
        student_t(wanted.verify)


if __name__ == "__main__":
    main()
