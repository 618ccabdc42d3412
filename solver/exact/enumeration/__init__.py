"""Small problems by all their orders."""

from .search import enumerable as enumerable
from .search import enumerate_orders as enumerate_orders
