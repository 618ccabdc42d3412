"""Training runs: `pipeloom run`."""
