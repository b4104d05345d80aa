"""The only place where a column is named or typed.

One `TableSpec` per Delta table: Arrow schema, key, partition columns, and what each field means, in which unit. Types are
limited to what Delta gives back unchanged: signed ints, floats, bool, string, binary, date32, timestamp[us, UTC], list,
struct, map. Nested JSON is canonical JSON text, since struct columns invent null members.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ContractError

TIMESTAMP = pa.timestamp("us", tz="UTC")
REASONS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("rule", pa.string()), pa.field("value", pa.float64()), pa.field("threshold", pa.float64())]),
    )
)
TEXT_MAP = pa.map_(pa.string(), pa.string())
NUMBER_MAP = pa.map_(pa.string(), pa.float64())
COUNT_MAP = pa.map_(pa.string(), pa.int64())
STRINGS = pa.list_(pa.field("element", pa.string()))

STATES = ("raw_evidence", "cleaned_docs", "tokenized_shards", "run_view")


@dataclass(frozen=True)
class Column:
    """One field: name, Arrow type, meaning, unit (empty when it has none).

    `stats`: may its minimum and maximum stand in the Delta log? Only ids and counts may; text, payload, URI and deletion
    keys never do.
    """

    name: str
    type: pa.DataType
    doc: str
    unit: str = ""
    nullable: bool = False
    stats: bool = False


@dataclass(frozen=True)
class TableSpec:
    """One Delta table, at `<lake>/<state>/<name>`. `key` is not null and unique within one `version`."""

    state: str
    name: str
    row: str
    key: tuple[str, ...]
    partition_by: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def path(self) -> str:
        """Place below the lake's root."""
        return f"{self.state}/{self.name}"

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema with meaning and unit as field metadata."""
        return pa.schema(
            [pa.field(c.name, c.type, c.nullable, metadata={"doc": c.doc, "unit": c.unit}) for c in self.columns]
        )

    @property
    def stats_columns(self) -> list[str]:
        """Columns whose statistics may be written to the Delta log."""
        return [c.name for c in self.columns if c.stats]

    def conform(self, data: pa.Table | pl.DataFrame) -> pa.Table:
        """The same rows in exactly this schema: columns in order, plain (not large) types, nullability checked.

        Additive nullable columns that are missing are filled with nulls. Raises ContractError naming the columns that are
        missing, unknown, or hold nulls where none are allowed.
        """
        table = data.to_arrow() if isinstance(data, pl.DataFrame) else data
        names = set(table.column_names)
        unknown = sorted(names - {c.name for c in self.columns})
        missing = sorted(c.name for c in self.columns if c.name not in names and not c.nullable)
        if unknown or missing:
            raise ContractError(f"table {self.path}: missing columns {missing}, unknown columns {unknown}")
        arrays = []
        for column in self.columns:
            if column.name not in names:
                arrays.append(pa.nulls(len(table), column.type))
                continue
            array = table[column.name]
            if array.type != column.type:
                array = _cast(array, column.type)
            if not column.nullable and array.null_count:
                raise ContractError(f"table {self.path}: column {column.name} has {array.null_count} nulls of {len(array)}, expected none")
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def check_keys(self, table: pa.Table) -> None:
        """Raises ContractError with up to 5 ids when the key has nulls or stands twice. Values of keys are ids, never text."""
        for name in self.key:
            if table[name].null_count:
                raise ContractError(f"table {self.path}: key column {name} has {table[name].null_count} nulls")
        keys = pl.from_arrow(table.select(list(self.key)))
        assert isinstance(keys, pl.DataFrame)
        twice = keys.group_by(list(self.key)).len().filter(pl.col("len") > 1)
        if twice.height:
            examples = twice.sort(list(self.key)).head(5).rows()
            raise ContractError(f"table {self.path}: {twice.height} keys stand more than once, first {examples}")


def _cast(array: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_map(kind) and not pa.types.is_map(array.type):
        # polars has no map: it hands over list<struct<key, value>>
        plain = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))).combine_chunks()
        flat = plain.values
        made = pa.MapArray.from_arrays(plain.offsets, pc.struct_field(flat, "key"), pc.struct_field(flat, "value"), mask=plain.is_null())
        return pa.chunked_array([made.cast(kind)])
    return array.cast(kind)


def _c(name: str, kind: pa.DataType, doc: str, *, unit: str = "", null: bool = False, stats: bool = False) -> Column:
    return Column(name, kind, doc, unit, null, stats)


_S, _I = pa.string(), pa.int64()
_VERSION = _c("version", _S, "stage version that wrote the row", stats=True)
_SOURCE = _c("source", _S, "name of the source", stats=True)
_SNAPSHOT = _c("snapshot", pa.date32(), "date of the source snapshot", stats=True)
_RELEASE = _c("release", _S, "name of the release", stats=True)

EVIDENCE = TableSpec(
    "raw_evidence", "evidence", "one payload as received", ("evidence_id",), ("source",),
    (
        _c("evidence_id", _S, "identity of the payload", stats=True), _VERSION, _SOURCE, _SNAPSHOT,
        _c("record_key", _S, "container path in the inventory and the place in it"),
        _c("uri", _S, "where the payload came from, as the source states it", null=True),
        _c("payload", pa.binary(), "the bytes as received; null when they lie in a blob", null=True),
        _c("blob_sha256", _S, "content address of the payload when it is not in the row", null=True),
        _c("media_type", _S, "declared or implied media type"),
        _c("charset", _S, "declared character set", null=True),
        _c("payload_sha256", _S, "sha256 of the payload bytes", stats=True),
        _c("size_bytes", _I, "payload length", unit="bytes", stats=True),
        _c("collected_at", TIMESTAMP, "record's own time, else declared, else the snapshot date at 00:00 UTC"),
        _c("resolved_revision", _S, "revision the source resolved to (in no id)", null=True),
        _c("fetched_at", TIMESTAMP, "time of fetching (in no id)", null=True),
        _c("licence", _S, "SPDX expression or `unknown`"),
        _c("consent_basis", _S, "why we may hold it"),
        _c("rights_reservation", _S, "declared reservation of rights (robots, text mining)", null=True),
        _c("deletion_keys", STRINGS, "keyed identifiers `key_id:hmac` by which a person can ask for deletion"),
        _c("container_sha256", _S, "sha256 of the file that held the payload"),
        _c("offset", _I, "place in the (decompressed) container: byte offset, member ordinal or row number"),
        _c("truncated", _S, "declared, suspected or no"),
        _c("purpose", _S, "pretrain or sft"),
        _c("meta", TEXT_MAP, "further fields of the record, as text"),
    ),
)


def _rejects(state: str) -> TableSpec:
    return TableSpec(
        state, "rejects", "one record that could not be read, kept with its reason", ("reject_id",), ("source",),
        (
            _c("reject_id", _S, "identity of the reject", stats=True), _VERSION, _SOURCE, _SNAPSHOT,
            _c("record_key", _S, "container path and place"),
            _c("evidence_id", _S, "evidence it came from, when it had become evidence", null=True),
            _c("reason", _S, "one word of a closed list", stats=True),
            _c("detail", _S, "what was expected and found; never text of the record"),
            _c("payload_sha256", _S, "sha256 of the whole record"),
            _c("size_bytes", _I, "length of the whole record", unit="bytes", stats=True),
            _c("payload", pa.binary(), "first bytes of the record, up to a cap"),
        ),
    )


EVIDENCE_REJECTS = _rejects("raw_evidence")
DOCUMENT_REJECTS = _rejects("cleaned_docs")

DOCUMENTS = TableSpec(
    "cleaned_docs", "documents", "one normalised text with every measured attribute and a local decision", ("doc_id",), ("source",),
    (
        _c("doc_id", _S, "identity of the document", stats=True), _VERSION, _SOURCE, _SNAPSHOT,
        _c("evidence_id", _S, "payload it was made from", stats=True),
        _c("ordinal", pa.int32(), "place of the document in the payload"),
        _c("record_key", _S, "container path and place of the payload"),
        _c("text", _S, "NFC text"),
        _c("text_sha256", _S, "sha256 of the text's UTF-8 bytes", stats=True),
        _c("n_chars", _I, "length in Unicode code points", unit="characters", stats=True),
        _c("n_bytes", _I, "length in UTF-8", unit="bytes", stats=True),
        _c("kind", _S, "content kind: prose, code, math or chat", stats=True),
        _c("language", _S, "BCP 47 language, `und` below the stated length or score, `zxx` for code", stats=True),
        _c("language_score", pa.float64(), "probability of the language, 0 to 1; null where no detector ran", null=True),
        _c("language_runner_up", _S, "second best language", null=True),
        _c("language_runner_up_score", pa.float64(), "its probability", null=True),
        _c("domain", _S, "domain the source declares; programming language for code", stats=True),
        _c("licence", _S, "SPDX expression or `unknown`"),
        _c("purpose", _S, "pretrain or sft"),
        _c("collected_at", TIMESTAMP, "as on the evidence"),
        _c("charset_declared", _S, "character set the record declared", null=True),
        _c("charset_used", _S, "character set the bytes were decoded with"),
        _c("attributes", NUMBER_MAP, "measured facts by name"),
        _c("decision", _S, "local decision: keep or drop", stats=True),
        _c("reasons", REASONS, "every rule that failed, with its value and threshold"),
        _c("meta", TEXT_MAP, "further fields of the record, as text"),
    ),
)

CLUSTERS = TableSpec(
    "cleaned_docs", "clusters", "cluster, survivor and split of one document of a release", ("doc_id",), ("release",),
    (
        _c("doc_id", _S, "document", stats=True), _VERSION, _RELEASE,
        _c("cluster_id", _S, "smallest doc_id of the cluster", stats=True),
        _c("cluster_size", _I, "documents in the cluster", unit="documents"),
        _c("survivor_id", _S, "document kept for this text", stats=True),
        _c("similarity", pa.float64(), "measured similarity to the survivor, 0 to 1"),
        _c("method", _S, "exact, or what joined it to the survivor"),
        _c("split", _S, "train or validation, one for the whole cluster", stats=True),
    ),
)

DECISIONS = TableSpec(
    "cleaned_docs", "decisions", "keep or drop of one document of a release, with all reasons", ("doc_id",), ("release",),
    (
        _c("doc_id", _S, "document", stats=True), _VERSION, _RELEASE,
        _c("source", _S, "name of the source", stats=True),
        _c("documents_version", _S, "version of `documents` that holds the row", stats=True),
        _c("decision", _S, "keep or drop", stats=True),
        _c("primary_reason", _S, "category of the first failing rule by the recipe's priority; null when kept", null=True, stats=True),
        _c("reasons", REASONS, "every rule that failed, with its value and threshold"),
        _c("cluster_id", _S, "cluster of the document", stats=True),
        _c("split", _S, "train or validation", stats=True),
    ),
)

SHARDS = TableSpec(
    "tokenized_shards", "shards", "one immutable token file", ("component", "split", "ordinal"), ("release",),
    (
        _c("shard_id", _S, "sha256 of the file", stats=True), _VERSION, _RELEASE,
        _c("tokenizer_id", _S, "tokenizer that made it", stats=True),
        _c("component", _S, "component of the mixture", stats=True),
        _c("split", _S, "train or validation", stats=True),
        _c("purpose", _S, "pretrain or sft"),
        _c("ordinal", _I, "build order within component and split"),
        _c("path", _S, "place below the loader's root"),
        _c("size_bytes", _I, "file length", unit="bytes", stats=True),
        _c("dtype", _S, "uint16 or uint32"),
        _c("n_docs", _I, "documents", unit="documents", stats=True),
        _c("n_tokens", _I, "tokens", unit="tokens", stats=True),
        _c("n_packs", _I, "packs of the index", unit="packs", stats=True),
        _c("pack_index_id", _S, "sha256 of the pack index file"),
        _c("shard_blocks_sha256", _S, "sha256 of the shard's .blocks file"),
        _c("pack_blocks_sha256", _S, "sha256 of the pack index's .blocks file"),
    ),
)

SHARD_DOCS = TableSpec(
    "tokenized_shards", "shard_docs", "one document in a shard", ("doc_id",), ("release",),
    (
        _c("doc_id", _S, "document", stats=True), _VERSION, _RELEASE,
        _c("shard_id", _S, "shard that holds it", stats=True),
        _c("component", _S, "component of the mixture", stats=True),
        _c("split", _S, "train or validation", stats=True),
        _c("ordinal", _I, "place of the document in the shard"),
        _c("start", _I, "first token in the shard", unit="tokens"),
        _c("n_tokens", _I, "tokens, begin and end marks included", unit="tokens", stats=True),
        _c("n_packed_tokens", _I, "tokens that lie in a pack", unit="tokens", stats=True),
        _c("n_loss_tokens", _I, "tokens in a pack that carry a label", unit="tokens", stats=True),
    ),
)

CATALOGS = TableSpec(
    "tokenized_shards", "catalogs", "one component and split: its catalog and stats files", ("component", "split"), ("release",),
    (
        _c("component", _S, "component of the mixture", stats=True), _VERSION, _RELEASE,
        _c("split", _S, "train or validation", stats=True),
        _c("tokenizer_id", _S, "tokenizer that made it", stats=True),
        _c("catalog_id", _S, "sha256 of the catalog file"),
        _c("stats_id", _S, "sha256 of the stats file"),
        _c("n_shards", _I, "shards", unit="shards"),
        _c("n_docs", _I, "documents", unit="documents"),
        _c("n_tokens", _I, "tokens", unit="tokens"),
        _c("n_packs", _I, "packs", unit="packs"),
        _c("n_loss_tokens", _I, "tokens that carry a label, over all packs", unit="tokens"),
        _c("n_chars", _I, "characters of the documents", unit="characters"),
        _c("licences", COUNT_MAP, "documents by SPDX expression"),
    ),
)

RUN_VIEWS = TableSpec(
    "run_view", "run_views", "one state of a run view", ("view_id", "status"), (),
    (
        _c("view_id", _S, "sha256 of the manifest's bytes", stats=True), _VERSION,
        _c("name", _S, "run view name", stats=True),
        _c("status", _S, "candidate, published or withdrawn", stats=True),
        _c("release", _S, "name of the release", stats=True),
        _c("parent", _S, "earlier view it continues", null=True),
        _c("relation", _S, "erasure or amendment", null=True),
        _c("proposer", _S, "who proposed it"),
        _c("created_at", TIMESTAMP, "when this state began"),
    ),
)

SNAPSHOTS = TableSpec(
    "control", "snapshots", "one completed version of a stage", ("version",), (),
    (
        _c("version", _S, "stage version", stats=True),
        _c("stage", _S, "name of the stage", stats=True),
        _c("state", _S, "state its tables lie under", stats=True),
        _c("partition", _S, "partition key as canonical JSON"),
        _c("status", _S, "complete"),
        _c("identity", _S, "all that the version digests, as canonical JSON"),
        _c("ledgers", _S, "closed ledgers, as canonical JSON"),
        _c("tables", _S, "per table n_rows, delta_version and content_sha256, as canonical JSON"),
        _c("run_id", _S, "Dagster run that completed it"),
        _c("created_at", TIMESTAMP, "when it was completed"),
        _c("record", _S, "git commit, packages and timings, as canonical JSON; in no id"),
    ),
)

RELEASES = TableSpec(
    "control", "releases", "one sealed release", ("name",), (),
    (
        _c("name", _S, "release name", stats=True),
        _c("release_id", _S, "identity of the sealed set", stats=True),
        _c("parent", _S, "earlier release it extends", null=True),
        _c("members", _S, "sources, dates and evidence versions, as canonical JSON"),
        _c("recipe", _S, "name of the recipe it is judged with"),
        _c("sealed_at", TIMESTAMP, "when it was sealed"),
        _c("run_id", _S, "run that sealed it"),
    ),
)

GATES = TableSpec(
    "control", "gates", "one check of one version", ("version", "check"), (),
    (
        _c("version", _S, "stage version that was judged", stats=True),
        _c("check", _S, "name of the check, a row rule", stats=True),
        _c("stage", _S, "stage whose rules judged it", stats=True),
        _c("passed", pa.bool_(), "did the expectation hold"),
        _c("severity", _S, "error or warn"),
        _c("n_evaluated", _I, "rows or items the check judged", stats=True),
        _c("observed", pa.float64(), "value that was judged", null=True),
        _c("minimum", pa.float64(), "inclusive lower bound, null when open", null=True),
        _c("maximum", pa.float64(), "inclusive upper bound, null when open", null=True),
        _c("raised", _S, "kind of exception the expectation raised, else empty"),
        _c("expected_checks", _S, "closed set of checks of this version, as canonical JSON"),
        _c("judged_at", TIMESTAMP, "when it was judged"),
        _c("run_id", _S, "run that judged it"),
    ),
)

APPROVALS = TableSpec(
    "control", "approvals", "one signed decision", ("approval_id",), (),
    (
        _c("approval_id", _S, "sha256 of document and signature", stats=True),
        _c("kind", _S, "publish, and later kinds", stats=True),
        _c("subject", _S, "digest that was judged", stats=True),
        _c("document", pa.binary(), "canonical JSON that was signed"),
        _c("signature", _S, "armoured SSH signature"),
        _c("received_at", TIMESTAMP, "when it was filed"),
    ),
)

ALERTS = TableSpec(
    "control", "alerts", "one thing a person should know, written before anybody is told", ("alert_id",), (),
    (
        _c("alert_id", _S, "identity: kind, subject, occasion, check and partition", stats=True),
        _c("kind", _S, "red_check, failed_run, late_source or waiting_approval", stats=True),
        _c("subject", _S, "asset, job, source or run view it is about"),
        _c("occasion", _S, "version, run, date or digest it is about"),
        _c("check", _S, "name of the check, else empty"),
        _c("partition", _S, "partition key, else empty"),
        _c("severity", _S, "error or warn"),
        _c("detail", _S, "what was expected and found; ids and counts, never text"),
        _c("run_id", _S, "run that showed it, else empty"),
        _c("happened_at", TIMESTAMP, "when it happened"),
        _c("created_at", TIMESTAMP, "when it was written here"),
    ),
)

ALERT_DELIVERIES = TableSpec(
    "control", "alert_deliveries", "how far one alert came on one channel", ("alert_id", "channel"), (),
    (
        _c("alert_id", _S, "alert", stats=True),
        _c("channel", _S, "log, webhook or mail", stats=True),
        _c("state", _S, "waiting, refused or delivered"),
        _c("attempts", _I, "times it was sent", stats=True),
        _c("problem", _S, "why the last attempt failed, else empty; never the receiver's text"),
        _c("tried_at", TIMESTAMP, "when it was sent last"),
        _c("delivered_at", TIMESTAMP, "when the receiver took it", null=True),
    ),
)

TABLES: dict[str, TableSpec] = {
    spec.path: spec
    for spec in (
        EVIDENCE, EVIDENCE_REJECTS, DOCUMENTS, DOCUMENT_REJECTS, CLUSTERS, DECISIONS, SHARDS, SHARD_DOCS, CATALOGS, RUN_VIEWS,
        SNAPSHOTS, RELEASES, GATES, APPROVALS, ALERTS, ALERT_DELIVERIES,
    )
}
