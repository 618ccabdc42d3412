"""Training runs, as by ``pipeloom run``: the loop, checkpoints, replicas and callbacks."""
