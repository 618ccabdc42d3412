"""``python -m pipeloom``, and the entry point of the command ``pipeloom``.

The command line is imported inside :func:`command`, so that an interrupt during the import is also
reported in one line.
"""

import sys


def command() -> None:
    """Import the command line and run it."""
    try:
        from .cli.main import command as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("pipeloom: interrupted; nothing was written\n")
        raise SystemExit(130) from None


if __name__ == "__main__":
    command()
