"""Chooses which tensors of a model travel: all, the trained ones, or those that patterns name.

A choice is a list of words. ``trainable`` means parameters with ``requires_grad``. Any other word is a pattern of
names, in which ``*`` stands for any characters and ``?`` for one. A word that begins with ``!`` excludes, any other
includes. If no word includes, all tensors are included before words exclude some.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from thalweg.errors import ModelError

TRAINABLE: Final = "trainable"
NOT: Final = "!"
_HINT: Final = "Give names or patterns as 'head.*' or '!*.running_mean', or 'trainable'"


@dataclass(frozen=True)
class Named:
    """A tensor as a choice sees it: all its names (several if it is tied), and whether it is trained.

    ``trainable`` is None if that is not known, as for a NumPy array.
    """

    names: Sequence[str]
    trainable: bool | None


class Choice:
    """A choice of the tensors that travel."""

    def __init__(self, words: str | Iterable[str] | None = None) -> None:
        """``words`` is a list of words, or a single one; None chooses all tensors. Raises ModelError for a bad word."""
        if words is not None and not isinstance(words, Iterable):
            raise ModelError(f"tensors is a {type(words).__name__}", _HINT)
        patterns: list[Any] = [words] if isinstance(words, str) else list(words or ())
        for word in patterns:
            if not isinstance(word, str) or word in ("", NOT):
                raise ModelError(f"tensors has {word!r}, which is no pattern", _HINT)
        self.words = patterns
        self._adds = [(word, _rule(word)) for word in patterns if not word.startswith(NOT)]
        self._takes = [(word, _rule(word.removeprefix(NOT))) for word in patterns if word.startswith(NOT)]

    @property
    def is_all(self) -> bool:
        """Whether every tensor travels."""
        return not self.words

    def takes(self, tensor: Named) -> bool:
        """Return whether a tensor is sent: no word with ``!`` matches it, and, if there are others, one of them does.

        A word matches if it fits any of the tensor's names.
        """
        if any(_fits(rule, tensor) for _, rule in self._takes):
            return False
        return not self._adds or any(_fits(rule, tensor) for _, rule in self._adds)

    def of(self, tensors: Sequence[Named], others: Sequence[Named] = ()) -> list[bool]:
        """Return for each tensor whether it travels. Raises ModelError if a word matches none, or none is left.

        ``others`` never travel, but a word that excludes may name them.
        """
        for rules, candidates in ((self._adds, tensors), (self._takes, [*tensors, *others])):
            for word, rule in rules:
                if not any(_fits(rule, tensor) for tensor in candidates):
                    raise _nothing(word, tensors)
        chosen = [self.takes(tensor) for tensor in tensors]
        if self.words and not any(chosen):
            raise ModelError(f"tensors = {self.words} leaves no tensor that travels", _HINT)
        return chosen

    def __str__(self) -> str:
        return "all" if self.is_all else ", ".join(self.words)


def _rule(word: str) -> re.Pattern[str] | None:
    """Return a word's pattern as a regular expression; None for ``trainable``."""
    if word == TRAINABLE:
        return None
    signs = {"*": ".*", "?": "."}
    return re.compile("".join(signs.get(sign) or re.escape(sign) for sign in word), re.DOTALL)


def _fits(rule: re.Pattern[str] | None, tensor: Named) -> bool:
    if rule is None:
        return bool(tensor.trainable)
    return any(rule.fullmatch(name) for name in tensor.names)


def _nothing(word: str, tensors: Sequence[Named]) -> ModelError:
    plain = word.removeprefix(NOT)
    if plain == TRAINABLE:
        known = any(tensor.trainable is not None for tensor in tensors)
        why = "no parameter of the model has requires_grad" if known else "arrays do not say whether they are trained"
        return ModelError(f"tensors asks for {word!r}, but {why}", "Name the tensors by patterns as 'head.*'")
    names = [name for tensor in tensors for name in tensor.names]
    near = get_close_matches(plain.replace("*", ""), names, n=3, cutoff=0.3) or names[:3]
    cause = f"no tensor of the model fits {plain!r}, which tensors asks for"
    return ModelError(cause, f"The nearest names are {', '.join(map(repr, near))}" if near else _HINT)
