"""Families with one stage per rank."""
