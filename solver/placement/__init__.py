"""The search among placements."""
