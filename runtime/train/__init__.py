"""Training runs: `pipeloom run` and `pipeloom tune`."""
