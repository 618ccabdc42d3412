"""Pictures of schedules (SVG, HTML, terminal, Chrome trace), of sweeps, and summaries in words.

The public names stand in ``__init__.pyi``; each is loaded when it is first used.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
