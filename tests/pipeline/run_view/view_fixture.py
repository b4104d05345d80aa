"""The run view of the shard fixture, through the tables a lake would hold.

Run as a program it prints the ids of every file and of the view as JSON.
"""

import json
import sys

import pyarrow as pa

from pipeline.ids import sha256_hex
from pipeline.recipe import Recipe
from pipeline.run_view.manifest import ComponentFiles, build_manifest, component_files
from pipeline.schemas import CATALOGS, SHARDS
from pipeline.tokenized_shards.build import BuiltComponent, ledgers
from runview.shards import read_stats
from tests.pipeline.tokenized_shards.shard_fixture import Files, build, byte_tokenizer, documents, recipe, with_components


def files_of(built: list[BuiltComponent], files: Files) -> list[ComponentFiles]:
    tables = [part.tables(release="fixture", version="v") for part in built]
    stats = {part.stats_id: read_stats(files.get("stats", part.stats_id)) for part in built}
    rows = [pa.concat_tables([table[spec.path] for table in tables]) for spec in (CATALOGS, SHARDS)]
    return component_files(rows[0], rows[1], stats=stats, ledgers=ledgers(built))


def fixture_view(**packing: object) -> tuple[Recipe, Files, list[BuiltComponent], list[ComponentFiles]]:
    made, files = recipe(**packing), Files()
    built, _ = build([with_components(documents(), made)], made, files)
    return made, files, built, files_of(built, files)


def manifest_of(made: Recipe, parts: list[ComponentFiles], **more: object) -> bytes:
    return build_manifest(
        made,
        release={"name": "fixture", "release_id": "a" * 64},
        stage_versions={"shards": "b" * 64},
        tokenizer=byte_tokenizer().manifest_entry(),
        files=parts,
        **more,  # type: ignore[arg-type]
    )


def identities() -> dict[str, object]:
    made, _, built, parts = fixture_view()
    return {
        "tokenizer_id": byte_tokenizer().tokenizer_id,
        "shards": {f"{part.component}/{part.split}": [s.shard_id for s in part.shards] for part in built},
        "packs": {f"{part.component}/{part.split}": [s.pack_index_id for s in part.shards] for part in built},
        "catalogs": {f"{part.component}/{part.split}": part.catalog_id for part in built},
        "stats": {f"{part.component}/{part.split}": part.stats_id for part in built},
        "view_id": sha256_hex(manifest_of(made, parts)),
    }


if __name__ == "__main__":
    json.dump(identities(), sys.stdout)
