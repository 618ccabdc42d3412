"""The page of ``pipeloom serve``: a local web server on which profiles, schedules and memory limits
are explored.

It only calls the public functions of the planner and sends their results as JSON. Starlette and
uvicorn (the extra ``web``) are imported when the server is started.

``__init__.pyi`` lists the public names. Each is imported when it is first used.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
