"""Error feedback for answers of tasks: what compression leaves out of an update is added to a later one.

Clients of rounds have the same in the core (``thalweg.Client(compression=)``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from thalweg.errors import ModelError, RecordError
from thalweg.plan.options import check_task_scheme
from thalweg.record import checkpoint
from thalweg.tensors.arena import Arena
from thalweg.tensors.named import Named, Tensors

if TYPE_CHECKING:
    from thalweg.algorithms.server_step import Values


class ErrorFeedback:
    """Rounds the updates of a member of a ``TaskServer``, and keeps what rounding leaves out, the residual.

    It is not for several threads at once.
    """

    def __init__(self, scheme: str, file: Path | str | None = None) -> None:
        """Round by ``scheme``, which the ends of the link have as ``compression``.

        The residual is kept in ``file`` too, so that a member that starts anew goes on with it. Raises PlanError for
        powersgd, which tasks do not have.
        """
        check_task_scheme(scheme)
        self._scheme, self._file = scheme, None if file is None else Path(file)
        self._residual: Arena | None = None
        # Updates whose verdict is still to come, by the number of their task.
        self._open: dict[int, Tensors] = {}

    def compressed(self, task: int, update: Named) -> Tensors:
        """Return an update with the residual added, rounded, to be sent as the answer of ``task``.

        ``update`` is by how much training has changed each tensor. Float32 values are rounded, others stay. Call
        ``settle`` when it is known whether the answer counts. Raises ModelError for other tensors than before, and
        RecordError if the file cannot be used.
        """
        sent = Tensors(update)
        if self._residual is None:
            self._residual = self._loaded(sent.arena)
        difference = self._residual.layout.difference(sent.arena.layout, "in earlier updates", "in this one")
        if difference is not None:
            raise ModelError(f"the update has other tensors: {difference}", "Use one ErrorFeedback for each model")
        for residual, values in self._pairs(sent):
            _add(residual, values)
            values[...] = residual
        sent.arena.core.compress(scheme=self._scheme)
        for residual, values in self._pairs(sent):
            _add(residual, -values)
        self._open[task] = sent
        return sent

    def settle(self, task: int, *, counts: bool) -> None:
        """Note whether the answer of ``task`` counts. If not, all of it goes back into the residual.

        It does nothing for a task without such an answer. Raises RecordError if the file cannot be written.
        """
        sent = self._open.pop(task, None)
        if sent is None or self._residual is None:
            return
        if not counts:
            for residual, values in self._pairs(sent):
                _add(residual, values)
        self._store(self._residual)

    def close(self) -> None:
        """Put answers without a verdict back into the residual: the job has ended without them. Raises RecordError."""
        for task in list(self._open):
            self.settle(task, counts=False)

    def _pairs(self, sent: Tensors) -> Iterator[tuple[Values, Values]]:
        """Yield the residual and the values of each tensor of float32."""
        if self._residual is not None:
            for name, kind, *_ in self._residual.layout.tensors:
                if kind == "F32":
                    yield self._residual[name], sent.arena[name]

    def _loaded(self, like: Arena) -> Arena:
        """Return the residual for updates with the tensors of ``like``: the file's, or zeros."""
        import numpy as np

        from thalweg import _core

        residual = Arena(_core.Arena(like.layout))
        if self._file is not None and self._file.exists():
            try:
                checkpoint.read(self._file, residual.layout.tensors, np.asarray(residual.core).data)
            except RecordError as error:
                raise RecordError(error.cause, "Delete the file to begin with nothing left out") from error
        return residual

    def _store(self, residual: Arena) -> None:
        if self._file is None:
            return
        import numpy as np

        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            content = checkpoint.content(residual.layout.tensors, np.asarray(residual.core).data, 0)
            checkpoint.write_file(self._file, content)
        except OSError as error:
            cause = f"cannot write what compression has left out to {self._file}: {error.strerror}"
            raise RecordError(cause, "Make room, or give another file") from error


def _add(residual: Values, values: Values) -> None:
    """Add values to a residual. A sum that is not finite becomes 0, so that it spoils no later update."""
    import numpy as np

    with np.errstate(all="ignore"):
        residual += values
    residual[~np.isfinite(residual)] = 0
