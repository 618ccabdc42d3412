"""Levels of recomputation: which of a stage's values are kept from F to R, and which R makes."""
