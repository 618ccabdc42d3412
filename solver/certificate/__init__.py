"""Certificates of lower bounds: arguments that can be checked without this solver."""

from .certify import Certified as Certified
from .certify import Refutation as Refutation
from .certify import certify as certify
