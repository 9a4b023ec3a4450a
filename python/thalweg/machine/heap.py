"""Memory that this process has freed, and its C library keeps."""

from __future__ import annotations

import ctypes
import sys


def trim() -> bool:
    """Give freed memory back to the system; return whether the C library can (glibc does, others keep little)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        release = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    release(ctypes.c_size_t(0))
    return True
