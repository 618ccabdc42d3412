"""Lowering steps, in files by what they are about: valid program in, valid program out."""
