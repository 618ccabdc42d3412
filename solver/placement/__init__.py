"""The search for the best placement of stages on ranks."""
