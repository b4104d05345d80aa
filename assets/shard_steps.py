"""The work behind the shards of a release: kept documents in, token files and their rows out."""

import time
from collections.abc import Iterator
from dataclasses import replace

import polars as pl
import pyarrow as pa

from assets import steps
from assets.gates import require_gate
from pipeline.ledger import Ledger
from pipeline.recipe import Recipe, Release
from pipeline.schemas import CATALOGS, DECISIONS, DOCUMENTS, SHARD_DOCS, SHARDS
from pipeline.stages import StageVersion
from pipeline.tokenized_shards import build, components
from pipeline.tokenized_shards.tokenizer import Tokenizer
from resources.files import HAS_BLOCKS
from resources.project import Project

META = ["doc_id", "source", "language", "kind", "domain"]
TEXT = ["doc_id", "text", "n_chars", "licence", "purpose", "language", "domain"]
BATCH_ROWS = 2048  # texts held at once; the tokens of the release are held as a whole


def shards_stage(
    project: Project, release: Release, recipe: Recipe, tokenizer: Tokenizer
) -> tuple[StageVersion, str, dict[steps.Member, str]]:
    """Version of the shards, of the decisions they obey, and of the documents they hold."""
    versions = steps.release_documents(project, recipe, steps.require_sealed(project, release.name))
    decisions_version = steps.decisions_stage(recipe, release.name, versions).version
    stage = build.stage_version(
        recipe.tokenization,
        recipe.packing,
        recipe.components,
        release=release.name,
        tokenizer=tokenizer,
        decisions_version=decisions_version,
        documents_versions=steps.by_place(versions),
    )
    return stage, decisions_version, versions


def kept_documents(project: Project, decisions_version: str) -> pl.DataFrame:
    """doc_id, documents_version and split of every kept document."""
    kept = project.lake.read(DECISIONS, decisions_version, columns=["doc_id", "documents_version", "split", "decision"])
    frame = pl.from_arrow(kept)
    assert isinstance(frame, pl.DataFrame)
    return frame.filter(pl.col("decision") == "keep").drop("decision").sort("doc_id")


def make_shards(project: Project, release: Release, recipe: Recipe, tokenizer_name: str, *, run_id: str) -> steps.Done:
    """Token shards, pack indexes, catalogs and stats of every component of a release."""
    start = time.perf_counter()
    tokenizer = project.tokenizers.load(tokenizer_name)
    stage, decisions_version, _ = shards_stage(project, release, recipe, tokenizer)

    def make() -> steps.Made:
        require_gate(project, "decisions", decisions_version)
        place, versions = placed_documents(project, recipe, decisions_version)

        def batches() -> Iterator[pa.Table]:
            for version in versions:
                for batch in project.lake.batches(DOCUMENTS, version, columns=TEXT, batch_rows=BATCH_ROWS):
                    yield pl.DataFrame(batch).join(place, on="doc_id", how="inner").to_arrow()

        built, trips = build.build_release(
            batches(),
            components=recipe.components,
            tokenizer=tokenizer,
            tokenization=recipe.tokenization,
            packing=recipe.packing,
            put=lambda kind, data: project.files.put(kind, data, blocks=kind in HAS_BLOCKS),
        )
        rows = [part.tables(release=release.name, version=stage.version) for part in built]
        tables = [(spec, pa.concat_tables([part[spec.path] for part in rows])) for spec in (SHARDS, SHARD_DOCS, CATALOGS)]
        ledgers = [replace(ledger, unit=name) for name, ledger in build.ledgers(built).items()]
        return tables, [*ledgers, round_trip_ledger(trips)], {}

    return steps.once(project, stage, make, run_id=run_id, start=start, lacks_files=lambda made: bool(missing_files(project, made.version)))


def missing_files(project: Project, version: str) -> list[str]:
    """Digests of the files of a shards version that are not there, or, for shards, have another size."""
    shards = project.lake.read(SHARDS, version, columns=["shard_id", "pack_index_id", "size_bytes"]).to_pylist()
    catalogs = project.lake.read(CATALOGS, version, columns=["catalog_id", "stats_id"]).to_pylist()
    listed = [("packs", row["pack_index_id"], None) for row in shards]
    listed += [(kind, row[name], None) for row in catalogs for kind, name in (("catalogs", "catalog_id"), ("stats", "stats_id"))]
    listed = [*(("shards", row["shard_id"], row["size_bytes"]) for row in shards), *listed]
    sizes = project.files.sizes([(kind, sha256) for kind, sha256, _ in listed])
    return [sha256 for (_, sha256, wanted), found in zip(listed, sizes, strict=True) if found is None or wanted not in (None, found)]


def placed_documents(project: Project, recipe: Recipe, decisions_version: str) -> tuple[pl.DataFrame, list[str]]:
    """doc_id, split and component of every kept document, and the versions of `documents` that hold them.

    Raises MixtureError when a kept document is in no component or in two.
    """
    kept = kept_documents(project, decisions_version)
    versions = kept["documents_version"].unique().sort().to_list()
    meta = [pl.DataFrame(project.lake.read(DOCUMENTS, version, columns=META)) for version in versions]
    joined = kept.join(pl.concat(meta), on="doc_id", how="inner") if meta else kept
    component = pl.Series("component", components.assign(joined.to_arrow(), recipe.components))
    return joined.with_columns(component).select("doc_id", "split", "component"), versions


def round_trip_ledger(trips: pa.Table) -> Ledger:
    """Documents whose text the tokenizer gives back unchanged, and those it does not, by language and domain."""
    rows = trips.to_pylist()
    different = {f"{row['language']}/{row['domain']}": row["n_docs"] - row["n_exact"] for row in rows if row["n_docs"] != row["n_exact"]}
    total, exact = sum(row["n_docs"] for row in rows), sum(row["n_exact"] for row in rows)
    return Ledger("round_trip", "tried", total, {"equal": exact, "different": different})
