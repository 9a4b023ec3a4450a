"""One run of a cell: ``python -m thalweg.bench.worker``, in a process of its own like ``thalweg run``.

It reads ``{"plan": PATH, "parent": PID}`` from standard input and prints the same as ``thalweg run --json``, or as
``thalweg flower run --json`` for a Flower app. With ``system`` another system does the plan's work. A plan with virtual
time runs inside a guest kernel. The process never outlives its parent. After SIGTERM it closes its links, its lab and
its record, and ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from thalweg import wire
from thalweg.bench.process import Order
from thalweg.machine.grace import interrupted_code, leave, remember_interrupts
from thalweg.machine.parent import die_with


def main() -> int:
    """Run the plan. Returns the exit code."""
    order = wire.decode(Order, sys.stdin.read())
    die_with(order.parent)
    remember_interrupts()
    from thalweg import _core
    from thalweg.bench import system_run
    from thalweg.bench.systems import System
    from thalweg.errors import ThalwegError
    from thalweg.flower import run as flower
    from thalweg.job.common.failure import end_elsewhere
    from thalweg.job.run import run
    from thalweg.lab import guest
    from thalweg.plan import Plan
    from thalweg.ui.explain import exit_code
    from thalweg.ui.output import output
    from thalweg.ui.progress import LineProgress

    try:
        with output(as_json=True) as emit:
            plan, lines = Plan.load(Path(order.plan)), LineProgress()
            if guest.is_wanted(plan):
                program = [sys.executable, "-m", "thalweg", "run", order.plan, "--json"]
                folders = [Path(order.plan).parent, Path(plan.record.folder)]
                code, printed = guest.run(program, folders=folders, on_cut=end_elsewhere)
                if printed:
                    emit(wire.decode(dict[str, object], printed))
                return code
            if order.system is not None:
                emit(system_run.run(plan, System.model_validate(order.system), lines))
                return 0
            result = flower.run(plan, lines) if flower.is_app(plan) else run(plan, lines)
            emit(result.table())
    except KeyboardInterrupt:
        leave(interrupted_code())
    except (ThalwegError, _core.CoreError) as error:
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
