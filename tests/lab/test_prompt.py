"""The prompt of a lab's shell names the lab and the host, also with the user's own shell settings."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from thalweg.lab.prompt import shell


def prompt_of(program: str, folder: Path, home: Path) -> str:
    """Return the output of an interactive shell that reads ``exit``."""
    opened = shell(program, "wan", "client-1", folder, {"HOME": str(home)})
    ours, theirs = pty.openpty()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "TERM": "dumb", **opened.environment}
    with subprocess.Popen(
        opened.command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    ) as process:
        os.close(theirs)
        os.write(ours, b"exit\n")
        text = b""
        try:
            while piece := os.read(ours, 4096):
                text += piece
        except OSError:  # reading a terminal fails when no process has it open any more
            pass
        process.wait()
    os.close(ours)
    return text.decode(errors="replace")


@pytest.mark.parametrize("name", ["bash", "zsh", "dash", "sh"])
def test_the_prompt_names_lab_and_host(tmp_path: Path, name: str) -> None:
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    (tmp_path / ".bashrc").write_text("PS1='mine> '\n")
    (tmp_path / ".zshrc").write_text("PROMPT='mine> '\n")
    shown = prompt_of(program, tmp_path / "lab", tmp_path)
    own = "mine> " if name in ("bash", "zsh") else ""
    assert f"(wan client-1) {own}" in shown


def test_fish_is_told_by_a_command(tmp_path: Path) -> None:
    opened = shell("/usr/bin/fish", "wan", "server", tmp_path, {})
    assert opened.command[1] == "--init-command"
    assert opened.environment["THALWEG_PROMPT"] == "(wan server) "
