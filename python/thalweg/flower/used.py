"""Frees the memory of replies that Flower's own loop of rounds has used, before the next replies arrive."""

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
        """Keep a list that the loop gets."""
        self._lists.append(replies)

    def forget(self) -> None:
        """Forget all lists without emptying them: the loop is over, and the app may use them."""
        self._lists.clear()

    def free(self) -> None:
        """Empty the lists of replies that the loop has used already.

        The loop's variables refer to them until the next replies arrive, which would keep one more model per node in
        memory. A list to which any other object refers, such as a user's strategy, is left as it is.
        """
        freed = 0
        contents: list[weakref.ref[RecordDict]] = []
        # The reference count that Python reports for a list to which only one other list refers; it differs between
        # releases.
        alone = [Replies()]
        unnamed = sys.getrefcount(alone[0])
        for at in range(len(self._lists)):
            if sys.getrefcount(self._lists[at]) <= unnamed + 1:  # one more reference: the loop's variable
                reply_contents = [reply.content for reply in self._lists[at] if reply.has_content()]
                freed += sum(map(bytes_of, reply_contents))
                contents += map(weakref.ref, reply_contents)
                del reply_contents  # it refers to the contents that are to be freed
                self._lists[at].clear()
                self._lists[at].mean = None
        self._lists.clear()
        if freed >= fold.WORTH_A_SEARCH:
            # RecordDict.array_records leaves each reply in a reference cycle. A full garbage collection takes a tenth
            # of a second. Usually a collection of the younger generations frees the replies too.
            gc.collect(1)
            if any(content() is not None for content in contents):
                gc.collect()
            # glibc does not return freed arrays of less than 32 MiB to the kernel, which may be a whole model.
            heap.trim()
