"""The C library's heap: large blocks go back to the system as soon as they are freed.

glibc raises its threshold for separate mappings to the size of the largest block that was freed. After one large
answer, later ones come from the heap, which keeps their memory: 16 answers of 20 MB left 270 MB behind, and 80 MB with
a fixed threshold. Other C libraries are left as they are.
"""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
_THRESHOLD_BYTES = 131_072  # where glibc starts


def settle_heap() -> None:
    """Keep the threshold where it is. For the start of the process: it changes nothing that is allocated already."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
