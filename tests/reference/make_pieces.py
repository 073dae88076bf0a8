"""Write pieces.csv: tilted densities that are sums of cut-off Gaussians, by tests/tools/pieces.py.

Run ``python -m tests.reference.make_pieces``; it takes half a minute.
"""

import csv
from pathlib import Path

from tests.tools import pieces

HEADER = ("likelihood", "theta", "mu", "sigma", "y", "log_z", "mean", "variance", "sigma_star")

if __name__ == "__main__":
    with Path(__file__).with_name("pieces.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        for name, *numbers in pieces.CASES:
            values = (*numbers, *pieces.reference(name, *numbers))
            writer.writerow([name, *(repr(float(v)) for v in values)])
