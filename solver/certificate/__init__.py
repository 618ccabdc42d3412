"""Certificates of lower bounds: arguments that others can check without this solver."""

from .certify import Certified as Certified
from .certify import certify as certify
from .refutation import Refutation as Refutation
