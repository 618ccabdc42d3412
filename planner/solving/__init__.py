"""How a problem is searched: options, cache and progress."""
