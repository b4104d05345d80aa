"""Is a licence among the allowed ones? SPDX expressions: OR needs one side, AND needs both, brackets group."""

from __future__ import annotations

import re
from collections.abc import Collection

_TOKEN = re.compile(r"\(|\)|[^\s()]+")


def is_allowed(expression: str, allowed: Collection[str]) -> bool:
    """True when `allowed` holds the expression itself or licences that satisfy it.

    `X WITH exception` and `X+` are licences of their own and have to be allowed as written. An expression that does not parse is
    allowed only as written. Source: SPDX specification, annex on licence expressions.
    """
    if expression in allowed:
        return True
    tokens = _TOKEN.findall(expression)
    try:
        value, rest = _either(tokens, allowed)
    except (IndexError, ValueError):
        return False
    return value and not rest


def _either(tokens: list[str], allowed: Collection[str]) -> tuple[bool, list[str]]:
    value, rest = _both(tokens, allowed)
    while rest and rest[0].upper() == "OR":
        other, rest = _both(rest[1:], allowed)
        value = value or other
    return value, rest


def _both(tokens: list[str], allowed: Collection[str]) -> tuple[bool, list[str]]:
    value, rest = _one(tokens, allowed)
    while rest and rest[0].upper() == "AND":
        other, rest = _one(rest[1:], allowed)
        value = value and other
    return value, rest


def _one(tokens: list[str], allowed: Collection[str]) -> tuple[bool, list[str]]:
    head, rest = tokens[0], tokens[1:]
    if head == "(":
        value, rest = _either(rest, allowed)
        if rest[0] != ")":
            raise ValueError
        return value, rest[1:]
    if head == ")" or head.upper() in ("AND", "OR", "WITH"):
        raise ValueError
    if rest and rest[0].upper() == "WITH":
        return f"{head} WITH {rest[1]}" in allowed, rest[2:]
    return head in allowed, rest
