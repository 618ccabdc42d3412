"""From sequence lengths to microbatches: costs of sequences, heuristics, local search, and a lower
bound."""
