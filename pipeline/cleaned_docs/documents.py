"""Stage `documents`: evidence of one source snapshot to normalised, measured documents with a local decision.

Each payload makes one document, is empty, or is a reject. A document that fails rules stays, with every reason.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import lru_cache, partial
from importlib.metadata import version as package_version
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline import ids
from pipeline.cleaned_docs import encoding, extract, kind, language, licences, normalize, quality, reasons
from pipeline.cleaned_docs.measure import METRICS, measure
from pipeline.ledger import Ledger
from pipeline.recipe import Cleaning, Source, to_json
from pipeline.schemas import DOCUMENT_REJECTS, DOCUMENTS, NUMBER_MAP
from pipeline.stages import StageVersion

CODE_VERSION = "1"
# Payload bytes worked on at once. Columns between the steps take some ten times as much.
PIECE_BYTES = 16 * 2**20
# What `clean` reads; a reader of the lake may leave the rest out.
EVIDENCE_COLUMNS = (
    "evidence_id", "source", "snapshot", "record_key", "payload", "blob_sha256", "media_type", "charset", "payload_sha256", "size_bytes",
    "collected_at", "licence", "purpose", "meta",
)  # fmt: skip
# A reject keeps this much of the payload; the evidence keeps all of it.
REJECT_BYTES = 4096
# Text with a larger share of control characters is a reject, and any NUL. Measured: of 31,165 UTF-8 files of installed packages and
# corpora those without a NUL hold no control character at all; a stray one in a hundred may be an accident of a conversion.
MAX_CONTROL_SHARE = 0.01

_ATTRIBUTES = tuple(sorted((*METRICS, "n_crlf", "n_lone_cr", "nfc_changed", "charset_guessed")))


@dataclass(frozen=True)
class Cleaned:
    """DOCUMENTS and DOCUMENT_REJECTS in the order of the payloads, and the ledgers `payloads` and `documents`."""

    documents: pa.Table
    rejects: pa.Table
    ledgers: dict[str, Ledger]


@lru_cache(maxsize=1)
def behaviour_packages() -> dict[str, str]:
    """Packages whose release can change a row, and the Unicode data of this Python."""
    names = ("charset-normalizer", "orjson", "polars", "py3langid")
    return {"unicodedata": unicodedata.unidata_version, **{name: package_version(name) for name in names}}


def stage_version(cleaning: Cleaning, *, source: str, snapshot: date, evidence_version: str) -> StageVersion:
    """Version of `documents` for one source snapshot.

    The source file itself is part of the evidence version. Raises: RecipeError for a rule on a metric nothing measures.
    """
    quality.check_rules(cleaning.rules)
    return StageVersion(
        stage="documents",
        state="cleaned_docs",
        partition={"source": source, "snapshot": snapshot.isoformat()},
        code_version=CODE_VERSION,
        recipe_part=to_json(cleaning),
        parents={"evidence": evidence_version},
        models={"py3langid": language.model_digest()},
        packages=behaviour_packages(),
    )


@dataclass(frozen=True)
class CleanedPiece:
    """What one piece of the payloads became. Pieces are made one by one and independently of each other."""

    documents: pa.Table
    rejects: pa.Table
    counts: _Counts


Each = Callable[[Callable[[pa.RecordBatch], CleanedPiece], Iterable[pa.RecordBatch]], Iterable[CleanedPiece]]
"""Applies a function to every piece and gives the results in their order, as `map` does."""


def clean(
    batches: Iterable[pa.RecordBatch],
    *,
    source: Source,
    cleaning: Cleaning,
    version: str,
    read_blob: Callable[[str], bytes],
    each: Each = map,
) -> Cleaned:
    """Documents, rejects and closed ledgers of one source snapshot.

    Args: batches, of the EVIDENCE schema; read_blob, bytes by content address for payloads that do not lie in the row; each, what
        applies the work to the pieces, here or in other processes (all arguments can be pickled, if `read_blob` can).
    Invariant: the order and batching of the input change no row.
    Raises: RecipeError for a rule on a metric nothing measures.
    """
    quality.check_rules(cleaning.rules)
    documents, rejects = [DOCUMENTS.schema.empty_table()], [DOCUMENT_REJECTS.schema.empty_table()]
    counts = _Counts(rules=[f"quality.{rule.name}" for rule in cleaning.rules])
    work = partial(_clean, source=source, cleaning=cleaning, version=version, read_blob=read_blob)
    for piece in each(work, _pieces(batches)):
        documents.append(piece.documents)
        rejects.append(piece.rejects)
        counts.add(piece.counts)
    return Cleaned(pa.concat_tables(documents), pa.concat_tables(rejects), counts.ledgers())


class _Counts:
    """Counts of a piece, or of all."""

    def __init__(self, *, rules: list[str]) -> None:
        self.n_payloads = self.n_empty = self.n_made = self.n_kept = 0
        self.rejected: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter(dict.fromkeys(reasons.LOCAL_CATEGORIES, 0))
        self.failed: Counter[str] = Counter(dict.fromkeys(rules, 0))
        self.not_applicable: Counter[str] = Counter(dict.fromkeys(rules, 0))
        self.by_domain: Counter[str] = Counter()
        self.failed_by_domain: Counter[str] = Counter()

    def add(self, other: _Counts) -> None:
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def ledgers(self) -> dict[str, Ledger]:
        payloads: dict[str, int | dict[str, int]] = {
            "parsed": self.n_made,
            "empty": self.n_empty,
            "rejected": dict(sorted(self.rejected.items())),
        }
        extra = {
            "rules": dict(self.failed),
            "not_applicable": dict(self.not_applicable),
            "kind_language": dict(sorted(self.by_domain.items())),
            "rules_by_kind_language": dict(sorted(self.failed_by_domain.items())),
        }
        return {
            "payloads": Ledger("payloads", "in", self.n_payloads, payloads).close(),
            "documents": Ledger("documents", "made", self.n_made, {"kept": self.n_kept, "dropped": dict(self.dropped)}, extra).close(),
        }


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in slices of at most PIECE_BYTES of payload, or of one row."""
    for batch in batches:
        ends = np.cumsum(np.asarray(batch["size_bytes"], dtype=np.int64))
        start = 0
        while start < len(batch):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + PIECE_BYTES, side="right")))
            yield batch.slice(start, stop - start)
            start = stop


def _payloads(piece: pa.RecordBatch, read_blob: Callable[[str], bytes]) -> pa.Array:
    inline = piece["payload"].cast(pa.large_binary())
    if not inline.null_count:
        return inline
    rows = zip(piece["payload"], piece["blob_sha256"].to_pylist(), strict=True)
    return pa.array([read_blob(blob) if blob is not None else payload.as_py() for payload, blob in rows], type=pa.large_binary())


def _clean(piece: pa.RecordBatch, *, source: Source, cleaning: Cleaning, version: str, read_blob: Callable[[str], bytes]) -> CleanedPiece:
    counts = _Counts(rules=[f"quality.{rule.name}" for rule in cleaning.rules])
    payloads = _payloads(piece, read_blob)
    decoded = encoding.decode_column(payloads, piece["charset"])
    extracted = extract.extract(decoded.texts, piece["media_type"], source=source)
    why = np.array([a or b for a, b in zip(decoded.reasons, extracted.reasons, strict=True)], dtype=object)
    detail = np.array([a or b for a, b in zip(decoded.details, extracted.details, strict=True)], dtype=object)

    rows = np.flatnonzero(why == "")
    texts, changes = normalize.normalize(pl.Series("text", extracted.texts.take(pa.array(rows)), dtype=pl.String))
    metrics = measure(texts)
    n_nul, n_control = metrics.pop("n_nul"), metrics["n_control"]
    binary = (n_nul > 0) | (n_control > MAX_CONTROL_SHARE * metrics["n_chars"])
    for at in np.flatnonzero(binary).tolist():
        why[rows[at]] = "binary"
        detail[rows[at]] = (
            f"expected text, found {int(n_nul[at])} NUL and {int(n_control[at])} control of {int(metrics['n_chars'][at])} characters"
        )
    text_rows = np.flatnonzero(~binary)
    rows, texts = rows[text_rows], texts.gather(text_rows)
    facts = {name: values[text_rows] for name, values in {**metrics, **changes}.items()}
    facts["charset_guessed"] = np.asarray(decoded.guessed, dtype=np.float64)[rows]
    made = _documents(
        piece.take(pa.array(rows)), texts, facts, [decoded.charsets[i] for i in rows.tolist()], source, cleaning, version, counts
    )

    refused = np.flatnonzero((why != "") & (why != extract.EMPTY))
    counts.n_payloads += len(piece)
    counts.n_empty += int(np.count_nonzero(why == extract.EMPTY))
    counts.rejected.update(why[refused].tolist())
    rejects = _rejects(piece.take(pa.array(refused)), payloads.take(pa.array(refused)), why[refused], detail[refused], version)
    return CleanedPiece(made, rejects, counts)


def _documents(
    evidence: pa.RecordBatch,
    texts: pl.Series,
    facts: dict[str, NDArray[np.float64]],
    charsets: list[str],
    source: Source,
    cleaning: Cleaning,
    version: str,
    counts: _Counts,
) -> pa.Table:
    n = len(evidence)
    media_types = pl.Series(evidence["media_type"], dtype=pl.String)
    kinds, domains = kind.kinds(texts, pl.Series(evidence["record_key"], dtype=pl.String), media_types, source=source)
    found = language.identify(texts, kinds, config=cleaning.language)
    parts = _reasons(evidence["licence"], kinds, found, facts, cleaning, counts)
    column = reasons.to_column(parts, n)
    primary = reasons.primary(pl.concat([pl.DataFrame(schema=reasons.ROWS), *parts]), n, priority=reasons.LOCAL_CATEGORIES)
    counts.n_made += n
    counts.n_kept += primary.null_count()
    counts.dropped.update(primary.drop_nulls().to_list())
    text_column = texts.to_arrow().cast(pa.large_string())
    return DOCUMENTS.conform(
        pa.table(
            {
                "doc_id": pa.array([ids.doc_id(evidence_id, 0) for evidence_id in evidence["evidence_id"].to_pylist()], pa.string()),
                "version": pa.array([version] * n, pa.string()),
                **{
                    name: evidence[name]
                    for name in ("source", "snapshot", "evidence_id", "record_key", "licence", "purpose", "collected_at", "meta")
                },
                "ordinal": pa.array(np.zeros(n, dtype=np.int32)),
                "text": text_column,
                "text_sha256": pa.array(ids.text_sha256(text_column), pa.string()),
                "n_chars": pa.array(facts["n_chars"].astype(np.int64)),
                "n_bytes": pa.array(facts["n_bytes"].astype(np.int64)),
                "kind": kinds.to_arrow(),
                **{name: found[name].to_arrow() for name in language.SCHEMA},
                "domain": domains.to_arrow(),
                "charset_declared": evidence["charset"],
                "charset_used": pa.array(charsets, pa.string()),
                "attributes": _attributes(facts, n),
                "decision": pc.if_else(primary.is_null().to_arrow(), "keep", "drop"),
                "reasons": column,
            }
        )
    )


def _reasons(
    licence: pa.Array, kinds: pl.Series, found: pl.DataFrame, facts: dict[str, NDArray[np.float64]], cleaning: Cleaning, counts: _Counts
) -> list[pl.DataFrame]:
    """Every failed rule, in the order of the categories."""
    languages = found["language"].to_numpy()
    parts = [reasons.failed(np.flatnonzero(facts["n_words"] == 0), "empty.text", value=None, threshold=None)]
    if cleaning.allowed_licences:
        allowed = {name: licences.is_allowed(name, cleaning.allowed_licences) for name in pc.unique(licence).to_pylist()}
        refused = [i for i, name in enumerate(licence.to_pylist()) if not allowed[name]]
        parts.append(reasons.failed(refused, "licence.not_allowed", value=None, threshold=None))
    other = ~np.isin(languages.astype(str), cleaning.language.accept)
    scores, least = found["language_score"].to_numpy(), float(cleaning.language.min_score)
    for rule, rows in (
        ("language.und", np.flatnonzero(other & (languages == language.UNDETERMINED))),
        ("language.not_accepted", np.flatnonzero(other & (languages != language.UNDETERMINED))),
    ):
        parts.append(reasons.failed(rows, rule, value=scores[rows], threshold=least))
    places = pl.Series(kinds + "/" + found["language"])
    counts.by_domain.update(places.to_list())
    for verdict in quality.judge(cleaning.rules, facts, kinds=kinds.to_numpy().astype(str), languages=languages.astype(str)):
        rule, rows = f"quality.{verdict.rule.name}", np.flatnonzero(verdict.failed)
        counts.not_applicable[rule] += int(np.count_nonzero(~verdict.applies))
        counts.failed_by_domain.update(f"{rule} {place}" for place in places.gather(rows))
        parts.append(reasons.failed(rows, rule, value=verdict.value[rows], threshold=float(verdict.rule.bound)))
    for part in parts:
        counts.failed.update(part["rule"].to_list())
    return parts


def _attributes(facts: dict[str, NDArray[np.float64]], n: int) -> pa.Array:
    """NUMBER_MAP of what was measured, names sorted; a fact that is NaN is left out."""
    values = np.stack([facts[name] for name in _ATTRIBUTES], axis=1)
    measured = ~np.isnan(values)
    offsets = np.zeros(n + 1, dtype=np.int32)
    np.cumsum(measured.sum(axis=1), out=offsets[1:])
    names = pa.array(_ATTRIBUTES, pa.string()).take(pa.array(np.nonzero(measured)[1]))
    return pa.MapArray.from_arrays(pa.array(offsets), names, pa.array(values[measured])).cast(NUMBER_MAP)


def _rejects(evidence: pa.RecordBatch, payloads: pa.Array, why: NDArray[Any], detail: NDArray[Any], version: str) -> pa.Table:
    keys = zip(
        evidence["source"].to_pylist(), evidence["snapshot"].to_pylist(), evidence["record_key"].to_pylist(), why.tolist(), strict=True
    )
    return DOCUMENT_REJECTS.conform(
        pa.table(
            {
                "reject_id": pa.array([ids.reject_id("cleaned_docs", *key) for key in keys], pa.string()),
                "version": pa.array([version] * len(evidence), pa.string()),
                **{name: evidence[name] for name in ("source", "snapshot", "record_key", "evidence_id", "payload_sha256", "size_bytes")},
                "reason": pa.array(why.tolist(), pa.string()),
                "detail": pa.array(detail.tolist(), pa.string()),
                "payload": pa.array([payload.as_py()[:REJECT_BYTES] for payload in payloads], pa.binary()),
            }
        )
    )
