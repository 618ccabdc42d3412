"""The library of everything that the command line can do, built on the solver and the compiler.
Needs no torch.

Its functions are public as ``pipeloom.optimize`` and so on. Each is in the module of the same name,
except ``export`` and ``import_`` in :mod:`.exchange`, ``arithmetic`` in :mod:`.models.arithmetic`,
``calibrate`` in :mod:`.prediction.calibration`, ``explain`` in :mod:`.results.explanation`,
``profile_from`` in :mod:`.measured.profile` and ``refit`` in :mod:`.packing.costs`. No module
imports the command line; progress is reported to a listener (:mod:`.solving.progress`).

Names that other folders use are listed in ``__init__.pyi``; each is loaded when it is first used.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
