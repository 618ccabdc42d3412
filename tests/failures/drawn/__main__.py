"""``python -m tests.failures.drawn``."""

import sys

from pipeloom import InputError

from . import main

if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except InputError as error:  # no permission for a separate network
        print(error, file=sys.stderr)
        code = 2
    raise SystemExit(code)
