"""The command line, its grids cut into small chunks: ``small_chunks.py BYTES ARGUMENTS``.

A small table then takes as many steps as a large one, and can be stopped between any two.
"""

import sys

import tablegen.grid.plan
from tablegen.console.cli import main

if __name__ == "__main__":
    tablegen.grid.plan.CHUNK_BYTES = int(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
