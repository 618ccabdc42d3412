"""Schedule families, one file each. A family is a published schedule that fits any profile."""

from .base import Family as Family
from .registry import ASYNCHRONOUS as ASYNCHRONOUS
from .registry import FAMILIES as FAMILIES
from .registry import build_family as build_family
from .registry import find_family as find_family
from .registry import synchronous as synchronous
