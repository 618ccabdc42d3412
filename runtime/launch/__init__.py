"""Starts ranks as processes."""
