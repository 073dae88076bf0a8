"""``python -m scripts.reports NAME``."""

import sys

from scripts.command_line import main

sys.exit(main("reports"))
