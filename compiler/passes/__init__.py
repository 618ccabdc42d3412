"""Lowering steps, one file each: valid program in, valid program out."""
