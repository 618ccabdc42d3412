"""Clusters: published peaks of GPUs and links, and how much of them real kernels reach.

:mod:`.gpus` and :mod:`.cluster` hold the presets, :mod:`.efficiency` the curves that are calibrated
on measurements, :mod:`.cluster` the file format, too.
"""
