"""Families that send weights from rank to rank."""
