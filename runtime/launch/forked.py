"""The last module that the fork server imports: excludes loaded objects from garbage collection.

Garbage collection in the forked processes then does not write to these objects, so all processes
share their memory.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
