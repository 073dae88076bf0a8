"""``python -m tablegen``."""

import sys

from tablegen.console.cli import main

sys.exit(main())
