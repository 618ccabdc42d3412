"""Profiles calculated from a model's and a cluster's figures."""
