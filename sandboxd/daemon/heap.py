"""The C library's heap: return large blocks to the system as soon as they are freed.

glibc raises its threshold for separate mappings to the size of the largest block that was freed. After one large
answer, later ones come from the heap, which keeps their memory: 16 answers of 20 MB left 270 MB behind, and 80 MB with
a fixed threshold. Other C libraries are not affected.
"""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
_THRESHOLD_BYTES = 131_072  # glibc's initial value


def settle_heap() -> None:
    """Fix the threshold. Call it at the start of the process: it does not affect existing allocations."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
