"""The start of ranks as processes."""
