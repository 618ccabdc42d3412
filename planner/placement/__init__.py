"""The choice of the placement of stages on ranks."""
