"""Probes: times and bytes of a rank's stages, links and host, run as the executor runs them."""
