"""``python -m pipeloom``."""

from pipeloom.cli.main import command

if __name__ == "__main__":
    command()
