"""``thalweg transports``."""

from __future__ import annotations

from thalweg.ui.output import Json, output


def command(*, as_json: Json = False) -> None:
    """List the transports and what each can do."""
    with output(as_json=as_json) as emit:
        from thalweg.transports import registry

        entries = registry.transports()
        emit(entries)
    if not as_json:
        from thalweg.ui import terminal
        from thalweg.wire import table_of

        table = terminal.table("name", "available", "capabilities", "options")
        for entry in entries:
            can = [
                name if value is True else f"{name} {value}"
                for name, value in table_of(entry.capabilities).items()
                if value
            ]
            own = ", ".join(setting.name for setting in entry.settings)
            table.add_row(entry.name, "yes" if entry.available else f"no: {entry.reason}", ", ".join(can), own)
        terminal.console().print(table)
