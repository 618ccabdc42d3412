"""The last module that the fork server imports: excludes loaded objects from garbage collection.

Forked processes then do not touch these objects and share their memory.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
