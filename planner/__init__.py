"""The library above solver and compiler: what the command line can, Python can. No torch.

Its functions are public as ``pipeloom.optimize`` and so on: one a module that is named for it, but
``export`` and ``import_`` in :mod:`.exchange`, ``calibrate`` in
:mod:`.prediction.calibration` and ``explain`` in :mod:`.explain.explanation`. Modules import no
command line; what they have to say while they work goes to a listener (:mod:`.progress`).

The public names stand in ``__init__.pyi``; each is loaded when it is first used.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
