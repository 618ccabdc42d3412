"""Pictures of schedules (SVG, HTML, terminal, Chrome trace) and of sweeps, and summaries as text.

``__init__.pyi`` lists the public names. Each is imported when it is first used.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
