"""How a problem is searched: common options, worker processes, a cache of results, and progress."""
