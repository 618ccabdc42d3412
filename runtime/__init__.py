"""Runs programs on torch.distributed; the only folder that imports torch.

``__init__.pyi`` lists the public names; each is loaded on first use.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
