"""The command of a shell on a lab's host. The shell's prompt names the lab and the host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

# The environment variable with the prompt's prefix. The start-up files below read it; users' scripts may too.
VARIABLE: Final = "THALWEG_PROMPT"
# The user's own start-up file comes first, because it may replace the prompt.
_BASH: Final = f'[ ! -r ~/.bashrc ] || . ~/.bashrc\nPS1="${{{VARIABLE}}}$PS1"\n'
_ZSH_ENVIRONMENT: Final = '[ ! -r "$THALWEG_ZDOTDIR/.zshenv" ] || . "$THALWEG_ZDOTDIR/.zshenv"\n'
_ZSH: Final = (
    'own="$ZDOTDIR"; ZDOTDIR="$THALWEG_ZDOTDIR"\n'
    '[ ! -r "$ZDOTDIR/.zshrc" ] || . "$ZDOTDIR/.zshrc"\n'
    f'PROMPT="${{{VARIABLE}}}$PROMPT"\n'
)
_FISH: Final = (
    "functions --copy fish_prompt thalweg_old_prompt; "
    f"function fish_prompt; echo -n ${VARIABLE}; thalweg_old_prompt; end"
)


class Shell(NamedTuple):
    """How to start a shell: its command, and variables to add to its environment."""

    command: list[str]
    environment: dict[str, str]


def shell(program: str, lab: str, host: str, folder: Path, environment: Mapping[str, str] = os.environ) -> Shell:
    """Return how to start ``program`` on a host of a lab. It writes start-up files to ``folder``. Raises OSError."""
    text = f"({lab} {host}) "
    name, variables = Path(program).name, {VARIABLE: text}
    if name == "bash":
        return Shell([program, "--rcfile", str(_written(folder / "bashrc", _BASH))], variables)
    if name == "zsh":
        own = _written(folder / "zsh" / ".zshrc", _ZSH).parent
        _written(own / ".zshenv", _ZSH_ENVIRONMENT)
        home = environment.get("ZDOTDIR") or environment.get("HOME", "/")
        return Shell([program], {**variables, "ZDOTDIR": str(own), "THALWEG_ZDOTDIR": home})
    if name == "fish":
        return Shell([program, "--init-command", _FISH], variables)
    sign = "# " if os.geteuid() == 0 else "$ "
    return Shell([program], {**variables, "PS1": f"{text}{sign}"})


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
