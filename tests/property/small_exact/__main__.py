"""``python -m tests.property.small_exact``."""

import sys

from . import main

raise SystemExit(main(sys.argv[1:]))
