"""Schedules that recompute, offload or fuse."""
