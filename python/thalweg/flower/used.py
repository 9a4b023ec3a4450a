"""Replies that Flower's own loop of rounds has used, whose memory is freed before the next ones come."""

from __future__ import annotations

import gc
import sys
import weakref

from flwr.app import RecordDict

from thalweg.flower import fold
from thalweg.flower.arrays import bytes_of
from thalweg.flower.fold import Replies
from thalweg.machine import heap


class UsedReplies:
    """The lists of replies that a grid gave to Flower's own loop."""

    def __init__(self) -> None:
        self._lists: list[Replies] = []

    def add(self, replies: Replies) -> None:
        """Take note of a list that the loop is given."""
        self._lists.append(replies)

    def forget(self) -> None:
        """Leave all lists as they are: the loop is over, and the app may have them."""
        self._lists.clear()

    def free(self) -> None:
        """Empty the lists of replies that the loop has used already.

        Its variables name them until the next replies come, which would be one model a node more in memory. A list that
        anybody else has, such as a strategy of one's own, is left as it is.
        """
        freed = 0
        contents: list[weakref.ref[RecordDict]] = []
        # What Python counts for a list that only another list names; how it counts differs between its releases.
        alone = [Replies()]
        unnamed = sys.getrefcount(alone[0])
        for at in range(len(self._lists)):
            if sys.getrefcount(self._lists[at]) <= unnamed + 1:  # the loop's variable names it
                found = [reply.content for reply in self._lists[at] if reply.has_content()]
                freed += sum(map(bytes_of, found))
                contents += map(weakref.ref, found)
                del found  # or it would keep what is to be freed
                self._lists[at].clear()
                self._lists[at].mean = None
        self._lists.clear()
        if freed >= fold.WORTH_A_SEARCH:
            # RecordDict.array_records leaves each reply in a cycle. A search of all objects takes a tenth of a second;
            # most often the replies are young enough for a shorter one.
            gc.collect(1)
            if any(content() is not None for content in contents):
                gc.collect()
            # glibc keeps freed arrays of less than 32 MiB, up to a whole model of them.
            heap.trim()
