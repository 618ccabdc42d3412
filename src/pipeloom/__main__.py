"""``python -m pipeloom``, and the command of that name: it is imported within, so that an interrupt
meanwhile ends in a line, too."""

import sys


def command() -> None:
    """Imports the command line and runs it."""
    try:
        from .cli.main import command as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("pipeloom: interrupted; nothing was written\n")
        raise SystemExit(130) from None


if __name__ == "__main__":
    command()
