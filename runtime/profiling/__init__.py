"""Measures a model's stages, its links and its host into a profile."""
