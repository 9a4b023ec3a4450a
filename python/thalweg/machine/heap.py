"""Returns memory that the C library has kept after it was freed."""

from __future__ import annotations

import ctypes
import sys


def trim() -> bool:
    """Return freed memory to the system. Returns False if the C library cannot: only glibc keeps much of it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        release = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    release(ctypes.c_size_t(0))
    return True
