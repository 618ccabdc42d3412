"""Runs this benchmark alone."""

import sys

from . import main

raise SystemExit(main(sys.argv[1:]))
