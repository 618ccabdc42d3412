"""``python -m tests.failures.drawn``."""

import sys

from . import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
