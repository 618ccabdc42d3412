"""From sequence lengths to microbatches: cost model, constructive heuristics, search, bound."""
