"""``python -m scripts.examples NAME``."""

import sys

from scripts.command_line import main

sys.exit(main("examples"))
