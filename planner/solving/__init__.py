"""How one plan is searched: its options and cache, and what its listener is told."""
