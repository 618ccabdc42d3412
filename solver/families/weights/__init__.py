"""Families that send weights, not activations, from rank to rank."""
