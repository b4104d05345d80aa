"""Reading a JSON object field by field, strictly: unknown, missing and mistyped fields are named in a ManifestError."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from runview.errors import ManifestError

T = TypeVar("T")
HEX64 = re.compile(r"[0-9a-f]{64}")
DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
NAME = re.compile(r"[a-z0-9._-]+")
MAX_COUNT = 2**53 - 1


class Fields:
    """One JSON object, and where it stands, for messages. Each getter checks the type; `required` checks the keys."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise ManifestError(f"{where}: an object expected, found {type(value).__name__}")
        self.value: dict[str, Any] = value
        self.where = where

    def required(self, names: tuple[str, ...], *, extra: bool = False) -> "Fields":
        missing = [name for name in names if name not in self.value]
        unknown = [] if extra else sorted(set(self.value) - set(names))
        if missing:
            raise ManifestError(f"{self.where}: key {missing[0]!r} is missing (all missing: {missing})")
        if unknown:
            raise ManifestError(
                f"{self.where}: key {unknown[0]!r} is unknown to this loader (all unknown: {unknown}); "
                "it may come from a newer runview, upgrade to read it"
            )
        return self

    def fail(self, name: str, expected: str) -> ManifestError:
        return ManifestError(f"{self.where}: key {name!r} must be {expected}, found {_short(self.value[name])}")

    def text(self, name: str) -> str:
        if not isinstance(self.value[name], str):
            raise self.fail(name, "a string")
        return str(self.value[name])

    def name(self, name: str) -> str:
        if not isinstance(self.value[name], str) or not NAME.fullmatch(self.value[name]):
            raise self.fail(name, "a name of [a-z0-9._-]")
        return str(self.value[name])

    def hex64(self, name: str) -> str:
        if not isinstance(self.value[name], str) or not HEX64.fullmatch(self.value[name]):
            raise self.fail(name, "a sha256 of 64 lower-case hex digits")
        return str(self.value[name])

    def count(self, name: str, *, least: int = 0) -> int:
        value = self.value[name]
        if type(value) is not int or not least <= value <= MAX_COUNT:
            raise self.fail(name, f"an integer from {least} to 2^53 - 1")
        return value

    def token(self, name: str) -> int | None:
        return None if self.value[name] is None else self.count(name)

    def decimal(self, name: str) -> str:
        if not isinstance(self.value[name], str) or not DECIMAL.fullmatch(self.value[name]):
            raise self.fail(name, 'a decimal string such as "0.25"')
        return str(self.value[name])

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        if self.value[name] not in known:
            raise self.fail(name, f"one of {list(known)} (others are not supported by this version)")
        return str(self.value[name])

    def mapping(self, name: str, read: "Callable[[Fields, str], T]") -> dict[str, T]:
        inner = Fields(self.value[name], f"{self.where}.{name}")
        return {key: read(inner, key) for key in inner.value}

    def free(self, name: str, *, optional: bool = True) -> Mapping[str, Any] | None:
        value = self.value[name]
        if value is None and optional:
            return None
        if not isinstance(value, dict):
            raise self.fail(name, "an object")
        return value

    def items(self, name: str, read: "Callable[[Fields], T]", *, least: int = 0) -> tuple[T, ...]:
        value = self.value[name]
        if not isinstance(value, list) or len(value) < least:
            raise self.fail(name, f"a list of at least {least} objects")
        return tuple(read(Fields(item, f"{self.where}.{name}[{at}]")) for at, item in enumerate(value))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
