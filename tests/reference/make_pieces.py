"""Write pieces.csv: tilted densities that are sums of cut-off Gaussians, by tests/tools/pieces.py.

Run ``python -m tests.reference.make_pieces``; it takes half a minute.
"""

from tests.reference.tilted import write
from tests.tools import pieces

HEADER = ("likelihood", "theta", "mu", "sigma", "y", "log_z", "mean", "variance", "sigma_star")

if __name__ == "__main__":
    rows = [(name, *numbers, *pieces.reference(name, *numbers)) for name, *numbers in pieces.CASES]
    write("pieces", HEADER, [(name, *(repr(float(v)) for v in values)) for name, *values in rows])
