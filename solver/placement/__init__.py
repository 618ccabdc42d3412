"""The search for the best placement."""
