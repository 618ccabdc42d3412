"""The last module that the fork server imports: what it has loaded by then is no garbage.

The processes that it forks leave that out of collections, and go on sharing its memory.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
