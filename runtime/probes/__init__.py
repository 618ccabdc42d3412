"""Probes: measure times and bytes of a rank's stages, links and host, with the executor."""
