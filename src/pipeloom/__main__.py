"""``python -m pipeloom``."""

from .cli.main import command

if __name__ == "__main__":
    command()
