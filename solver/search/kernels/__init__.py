"""The compiled loops of the local searches."""
