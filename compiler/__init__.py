"""Compiles a schedule into a program, reports the program's memory, and writes other formats.

The public names are listed in ``__init__.pyi``; each is loaded when it is first used.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
