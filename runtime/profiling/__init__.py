"""Measures a model's stages, its links and its host, to create a profile."""
