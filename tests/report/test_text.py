"""Text used by several reports."""

from __future__ import annotations

import pytest

from thalweg.report.text import commit_words


@pytest.mark.parametrize(
    ("commit", "words"),
    [
        (None, "no commit"),
        ("0123456789ab", "0123456789ab"),
        ("0123456789ab-dirty", "0123456789ab-dirty, with uncommitted changes"),
    ],
)
def test_a_commit_says_if_the_build_had_uncommitted_changes(commit: str | None, words: str) -> None:
    assert commit_words(commit) == words
