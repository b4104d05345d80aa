"""`source add` and `source check`: a new source is looked at before anything is taken in."""

import argparse
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assets.commands.common import Answer, project_of, size
from pipeline.errors import RecipeError, SourceError
from pipeline.raw_evidence.preview import STRUCTURED, Preview, Sized, census, preview
from pipeline.recipe import NAME, Source, parse_source
from resources.durable import write_atomic
from resources.inbox import arrivals
from resources.project import Project
from resources.sources import look

ROLES = ("text", "messages", "id", "url", "collected_at", "meta")
LISTS = ("include", "exclude", "packages", "deletion_key_fields")
PLAIN = ("licence", "licence_field", "consent_basis", "snapshot", "purpose", "kind", "domain", "charset", "select", "expect_every_hours")


def check(arguments: argparse.Namespace) -> Answer:
    """A dry run on the first records; nothing is written."""
    project = project_of(arguments)
    source = project.source(arguments.name)
    found = look_at(project, source, day=arguments.date, limit=arguments.records)
    value = {"source": source.name, **found.to_json()}
    return value, text(value)


def add(arguments: argparse.Namespace) -> Answer:
    """Write `sources/NAME.toml` when its dry run finds nothing wrong."""
    project = project_of(arguments)
    path = project.source_dir() / f"{arguments.name}.toml"
    if not NAME.fullmatch(arguments.name):
        raise RecipeError(f"name {arguments.name!r} must match [a-z0-9][a-z0-9._-]*")
    if path.exists():
        raise RecipeError(f"sources/{path.name} is there already; edit it, or choose another name (nothing was written)")
    values = _values(arguments, project)
    if values["reader"] in STRUCTURED and not values["fields"]:
        raise RecipeError(_fields_wanted(project, values))
    written = source_text(values)
    source = parse_source(written, where=path.name)
    found = look_at(project, source, day=None, limit=arguments.records)
    value = {"source": source.name, "path": f"sources/{path.name}", **found.to_json()}
    if not value["ok"]:
        return value, f"{text(value)}\nsources/{path.name} was not written"
    write_atomic(path, written.encode())
    value["written"] = True
    return value, f"{text(value)}\nwrote sources/{path.name}; collect it: runviewctl backfill run {source.name} DATE DATE, or in a release"


def look_at(project: Project, source: Source, *, day: Any, limit: int) -> Preview:
    """The first records of a source; of an inbox, those of the newest dated folder or of `day`."""
    return preview(source, containers(project, source, day=day), limit=limit)


def containers(project: Project, source: Source, *, day: Any) -> tuple[Sized, ...]:
    """What a source would read for a date (None: an inbox's newest). Raises SourceError, also for what must be fetched first."""
    if source.fetch is not None:
        raise SourceError(
            f"source {source.name}: its files are fetched ({source.fetch.kind}) when a snapshot is collected: there is nothing to look at "
            "before; collect one date, then see `runviewctl status`"
        )
    base = project.source_dir()
    if source.dated and day is None:
        found, _ = arrivals(source, base, wanted=lambda _: True)
        if not found:
            raise SourceError(f"source {source.name}: inbox {source.location!r} has no dated folder (like 2026-11-01) yet")
        day = found[-1].day
    return look(source.at(day) if day is not None else source, base)


def _values(arguments: argparse.Namespace, project: Project) -> dict[str, Any]:
    """Keys of the source file from the command's options; only those that were given."""
    values: dict[str, Any] = {"name": arguments.name, "reader": arguments.reader, "fields": {}}
    if arguments.location:
        values["location"] = _location(arguments.location, arguments.cwd, project.source_dir())
    for key in (*PLAIN, *LISTS):
        given = getattr(arguments, key)
        if given:
            values[key] = given
    for flag in ("split_lines", "dated"):
        if getattr(arguments, flag):
            values[flag] = True
    for role in ROLES:
        given = getattr(arguments, f"field_{role}")
        if given:
            values["fields"][role] = given
    return values


def _location(given: str, cwd: str, base: Path) -> str:
    """As the source file needs it: relative to its own folder, unless it was given as an absolute path."""
    place = Path(cwd) / given
    if os.path.isabs(given) or (not place.exists() and (base / given).exists()):
        return given
    return Path(os.path.relpath(place, base.resolve())).as_posix()


def _fields_wanted(project: Project, values: dict[str, Any]) -> str:
    """The error for records whose mapping is missing: names the fields that hold text."""
    plain = Source(
        values["name"], values["reader"], "-", location=values.get("location", ""), include=tuple(values.get("include", ["**/*"]))
    )
    held = containers(project, plain, day=None) if plain.location and not values.get("dated") else ()
    fields = census(plain.reader, held)
    texts = [f"{name} ({one.types['text']} of {one.n_records} records)" for name, one in fields.items() if one.types["text"]]
    turns = [name for name, one in fields.items() if one.types["list"]]
    return (
        f"source {plain.name}: reader {plain.reader} needs to know which fields hold the text: --text FIELD (several are joined), or "
        f"--messages FIELD. Fields with text: {', '.join(texts) or 'none found'}; with lists: {', '.join(turns) or 'none'}"
    )


def source_text(values: dict[str, Any]) -> str:
    """A commented source file."""
    comments = {
        "reader": "How its files are read: tree (a document per file), jsonl, parquet, text, python_environment.",
        "location": "Folder or file, relative to this file.",
        "include": "Which files, by path below the location; `exclude` takes some away again.",
        "dated": "The location is an inbox: its folders are dates, each one snapshot.",
        "snapshot": "The one date this source has. Without it, any date can be collected.",
        "kind": "What the documents are; without it, it is decided per document.",
        "licence": "SPDX expression of everything in here, or `unknown`; `licence_field` reads it per record.",
        "consent_basis": "Why this may be held.",
        "fields": "Which fields of a record are read, and as what. Other fields stay in the payload and are not read.",
        "deletion_key_fields": "Fields by whose keyed hash a person can ask for deletion.",
        "expect_every_hours": "Later than this after the last snapshot, the source counts as late.",
    }
    order = ["name", "reader", "location", "include", "exclude", "dated", "packages", "select", "split_lines", "charset", "snapshot"]
    order += [
        "expect_every_hours",
        "kind",
        "domain",
        "purpose",
        "licence",
        "licence_field",
        "consent_basis",
        "fields",
        "deletion_key_fields",
    ]
    day = datetime.now(UTC).date()
    lines = [f"# Made by `runviewctl source add` on {day} after a dry run; `runviewctl source check {values['name']}` repeats it."]
    for key in order:
        value = values.get(key)
        if value in (None, "", [], {}):
            continue
        if key in comments:
            lines.append(f"# {comments[key]}")
        lines.append(f"{key} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # a JSON string is a basic string of TOML, but for DEL
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return str(value)


def text(value: dict[str, Any]) -> str:
    """The dry run as lines; places, counts and names, never a value."""
    counts = value["counts"]
    about = "" if value["exact"] else "about "
    records = "unknown" if value["estimated_records"] is None else f"{about}{value['estimated_records']}"
    lines = [
        f"source {value['source']}: {value['n_containers']} containers, {size(value['size_bytes'])}, {records} records",
        f"first {value['n_read']} records: parsed={counts['parsed']} empty={counts['empty']} rejected={counts['rejected']}, "
        f"{size(value['payload_bytes'])} of payloads, {value['without_deletion_key']} without an identifier to delete by",
    ]
    lines.extend(f"  reject {row['place']}: {row['reason']}: {row['detail']}" for row in value["rejects"])
    lines.extend(f"  incomplete {row['container']}: {row['reason']} at {row['offset']}: {row['detail']}" for row in value["unread"])
    for name, one in value["fields"].items():
        types = ", ".join(f"{kind} {n}" for kind, n in one["types"].items()) or "not there"
        lines.append(f"  field {name}: {'read as ' + ', '.join(one['mapped']) if one['mapped'] else 'not read'} ({types})")
    if value["licences"]:
        lines.append("  licences: " + ", ".join(f"{name} {n}" for name, n in value["licences"].items()))
    lines.extend(f"  doubt: {doubt}" for doubt in value["doubts"])
    lines.extend(f"  problem: {problem}" for problem in value["problems"])
    return "\n".join(lines)
