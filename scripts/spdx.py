"""Checks SPDX licence expressions against a list of allowed licences."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from typing import Final

TOKEN: Final = re.compile(r"\s*(\(|\)|/|[A-Za-z0-9.+:-]+)")


class SpdxError(ValueError):
    """Text that is not an SPDX expression."""


class _Parser:
    """Parser with the precedence of SPDX annex D: WITH binds strongest, then AND, then OR (or Cargo's old slash)."""

    def __init__(self, text: str, allowed: AbstractSet[str]) -> None:
        self._tokens = _tokens(text)
        self._allowed = allowed

    def whole(self) -> bool:
        met = self._any()
        if self._tokens:
            raise SpdxError(f"{self._tokens[0]!r} is left over")
        return met

    def _any(self) -> bool:
        met = self._all()
        while self._take("OR", "/"):
            met = self._all() or met
        return met

    def _all(self) -> bool:
        met = self._one()
        while self._take("AND"):
            met = self._one() and met
        return met

    def _one(self) -> bool:
        if self._take("("):
            met = self._any()
            if not self._take(")"):
                raise SpdxError("a parenthesis is not closed")
            return met
        name = self._name()
        if self._take("WITH"):
            # An exception only gives more rights, so the licence alone decides.
            self._name()
        return name in self._allowed

    def _take(self, *words: str) -> bool:
        if self._tokens and self._tokens[0].upper() in words:
            self._tokens.pop(0)
            return True
        return False

    def _name(self) -> str:
        if not self._tokens or self._tokens[0].upper() in ("AND", "OR", "WITH", ")", "/"):
            raise SpdxError("the name of a licence is missing")
        return self._tokens.pop(0)


def _tokens(text: str) -> list[str]:
    tokens, place = [], 0
    text = text.strip()
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None:
            raise SpdxError(f"{text[place]!r} has no place in it")
        tokens.append(match[1])
        place = match.end()
    return tokens


def is_met(expression: str, allowed: AbstractSet[str]) -> bool:
    """Return whether the licences in ``allowed`` satisfy ``expression``. Raises SpdxError."""
    return _Parser(expression, allowed).whole()
