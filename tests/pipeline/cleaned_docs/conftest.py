"""Evidence rows and recipes for the tests of cleaning."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pipeline import ids
from pipeline.cleaned_docs.documents import Cleaned, clean
from pipeline.recipe import Cleaning, Language, Rule, Source
from pipeline.schemas import EVIDENCE

SNAPSHOT = date(2026, 1, 1)
LANGUAGE = Language(min_chars=10, min_score=Decimal("0.5"), accept=("en", "ko", "und", "zxx"), max_chars=2000)
RULES = (
    Rule("min_words", "n_words", Decimal(4), ("prose",)),
    Rule("min_word_letter_ratio", "word_letter_ratio", Decimal("0.79"), ("prose",), ("en", "ko")),
    Rule("max_top_bigram_fraction_en", "top_bigram_fraction", Decimal("0.2"), ("prose",), ("en", "und")),
    Rule("max_top_bigram_fraction_ko", "top_bigram_fraction", Decimal("0.282"), ("prose",), ("ko",)),
    Rule("min_code_lines", "n_lines", Decimal(3), ("code",)),
)

Row = tuple[str, bytes] | tuple[str, bytes, dict[str, Any]]


def _source(**fields: Any) -> Source:
    return Source(**{"name": "fixture", "reader": "tree", "consent_basis": "made for the project", **fields})


def _evidence(rows: Sequence[Row], source: Source) -> pa.RecordBatch:
    """Rows of (record_key, payload, other columns)."""
    made = []
    for key, payload, *more in rows:
        sha = hashlib.sha256(payload).hexdigest()
        row = {
            "evidence_id": ids.evidence_id(source.name, SNAPSHOT, key, sha), "version": "e" * 64, "source": source.name,
            "snapshot": SNAPSHOT, "record_key": key, "payload": payload, "media_type": "text/plain", "payload_sha256": sha,
            "size_bytes": len(payload), "collected_at": datetime(2026, 1, 1, tzinfo=UTC), "licence": "MIT", "consent_basis": "given",
            "deletion_keys": [], "container_sha256": "c" * 64, "offset": 0, "truncated": "no", "purpose": "pretrain", "meta": [],
        }  # fmt: skip
        made.append({**row, **(more[0] if more else {})})
    return pa.RecordBatch.from_pylist(made, schema=EVIDENCE.schema)


def _no_blob(digest: str) -> bytes:
    raise KeyError(digest)


@pytest.fixture(scope="session")
def source() -> Callable[..., Source]:
    return _source


@pytest.fixture(scope="session")
def evidence() -> Callable[[Sequence[Row], Source], pa.RecordBatch]:
    return _evidence


@pytest.fixture(scope="session")
def cleaning() -> Cleaning:
    return Cleaning(LANGUAGE, RULES)


@pytest.fixture(scope="session")
def run() -> Callable[..., Cleaned]:
    def call(rows: Sequence[Row], *, source: Source | None = None, cleaning: Cleaning | None = None) -> Cleaned:
        chosen = source or _source()
        batch = _evidence(rows, chosen)
        return clean([batch], source=chosen, cleaning=cleaning or Cleaning(LANGUAGE, RULES), version="v" * 64, read_blob=_no_blob)

    return call
