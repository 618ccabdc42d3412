"""The library above solver and compiler: everything that the command line can do. Needs no torch.

Its functions are public as ``pipeloom.optimize`` and so on. Each is in the module of the same name,
except ``export`` and ``import_`` in :mod:`.exchange`, ``calibrate`` in
:mod:`.prediction.calibration` and ``explain`` in :mod:`.explain.explanation`. No module imports the
command line; progress is reported to a listener (:mod:`.progress`).

The public names are listed in ``__init__.pyi``; each is loaded when it is first used.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
