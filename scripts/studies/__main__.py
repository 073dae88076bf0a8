"""``python -m scripts.studies NAME``."""

import sys

from scripts.command_line import main

sys.exit(main("studies"))
