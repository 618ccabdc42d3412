from .compile import compile_schedule as compile_schedule
from .compile import passes as passes
from .memory_footprint import footprint as footprint
