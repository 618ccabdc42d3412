"""Probes: measure the times and bytes of a rank's stages and the speed of its links."""
