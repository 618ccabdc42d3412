"""The start of ranks: as processes, or as threads of one process."""
