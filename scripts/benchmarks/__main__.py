"""``python -m scripts.benchmarks NAME``."""

import sys

from scripts.command_line import main

sys.exit(main("benchmarks"))
