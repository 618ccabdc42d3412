"""Families in which weights are sent from rank to rank."""
