"""One stage per rank."""
