"""Predicted beside measured: published runs that calibration never saw."""

from .calibrated import ROOMS, cases, columns, files, judge, measure

__all__ = ["ROOMS", "cases", "columns", "files", "judge", "measure"]
