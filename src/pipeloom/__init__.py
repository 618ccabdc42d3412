"""pipeloom: proven optimal pipeline schedules for measured times, run on torch.distributed.

``__init__.pyi`` lists the public names. Each is imported on first use, so planning does not import
torch, and ``--help`` imports no solver.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lazy_loader import attach_stub

__version__ = "0.2.0"

_load, __dir__, __all__ = attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        line = import_module(".ir.removed", __name__).replaced(f"pipeloom.{name}")
        more = "" if line is None else f": it {line}"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{more}")
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        how = "pip install 'pipeloom[runtime]', or in a checkout pip install '.[runtime]'"
        raise ImportError(f"pipeloom.{name} needs PyTorch: {how}", name="torch") from None
