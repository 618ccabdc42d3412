"""Clusters: published peaks of GPUs and links, and the share of them that real kernels reach.

``gpus.json`` and ``presets.json`` hold the presets, :mod:`.cluster` declares the file format, and
:mod:`.efficiency` the curves that are calibrated with measurements.
"""
