"""The last module that the fork server imports: what it has loaded by then is no garbage.

The processes that it forks leave that out where they look through all objects (a collection, the
search for models in :mod:`..stages.tie_detection`), and go on sharing its memory.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
