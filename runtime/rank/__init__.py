"""One rank: its role, its options and its context."""
