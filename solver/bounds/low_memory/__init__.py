"""Bounds for stages whose memory holds few microbatches."""
