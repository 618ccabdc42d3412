"""Local searches, which improve the best schedule."""
