"""From the lengths of sequences to microbatches: cost model, constructors, search, bound."""
