"""The chain of the fixture under Dagster: what it makes, to the digit, and that twice is once."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from assets import steps, view_steps
from assets.gates import read_gate
from pipeline.contracts import expected_checks, gate_problems
from pipeline.errors import RecipeError
from pipeline.ids import sha256_hex
from pipeline.ledger import Ledger
from pipeline.schemas import CLUSTERS, DECISIONS, DOCUMENTS, EVIDENCE_REJECTS, SHARDS
from resources.project import Project
from runview import Loader, RunView
from runview.errors import ManifestError
from tests.support import chain
from tests.support.project import IDS, RELEASE, VIEW, VIEW_ID, add_release, commits, edit, make_project, run_release, views


def ledgers(project: Project, stage: str, **partition: str) -> dict[str, Ledger]:
    """Ledgers of the one version of a partition, by unit."""
    (snapshot,) = project.lake.snapshots(stage=stage, partition=partition)
    return {ledger.unit: ledger for ledger in snapshot.ledgers}


def versions(project: Project) -> list[tuple[str, str]]:
    return sorted((snapshot.stage, snapshot.version) for snapshot in project.lake.snapshots())


def candidate_id(project: Project, view: str = VIEW) -> str:
    return str(view_steps.current_candidate(project, view)["view_id"])


def shard_ids(project: Project, version: str) -> dict[str, list[str]]:
    """First 16 digits of the shards of each component and split, in build order."""
    rows = pl.DataFrame(project.lake.read(SHARDS, version)).sort("component", "split", "ordinal")
    groups = rows.group_by(["component", "split"], maintain_order=True)
    return {" ".join(map(str, key)): part["shard_id"].str.head(16).to_list() for key, part in groups}


def publish(project: Project, release: str) -> Path:
    view = view_steps.view_name(project.release(release))
    view_steps.sign_approval(project, view, approver="", decision="approve", nonce="01")
    made = project.release(release)
    return Path(view_steps.publish_view(project, made, project.recipe(made.recipe), run_id="test").path)


def test_every_gate_is_green_and_judged_each_version(ran: Path) -> None:
    project = Project.at(ran)
    snapshots = project.lake.snapshots()
    assert Counter(snapshot.stage for snapshot in snapshots) == {
        "evidence": 4, "documents": 4, "clusters": 1, "decisions": 1, "shards": 1, "view": 1,
    }  # fmt: skip
    for snapshot in snapshots:
        stage = "candidate" if snapshot.stage == "view" else snapshot.stage
        verdicts = read_gate(project, snapshot.version)
        assert [verdict.check for verdict in verdicts] == sorted(expected_checks(stage))
        assert gate_problems(expected_checks(stage), verdicts) == []
        assert min(verdict.n_evaluated for verdict in verdicts) > 0
        project.lake.verify(snapshot.version)
    assert views(project) == [], "nothing is published without an approval"


def test_counts_of_the_fixture(ran: Path) -> None:
    project = Project.at(ran)
    received = {
        source: ledgers(project, "evidence", source=source, snapshot=day)["payloads"]
        for source, day in (("handbook", "2026-11-02"), ("notes", "2026-11-01"), ("sayings", "2026-11-01"), ("sums", "2026-11-01"))
    }
    assert {source: (ledger.total, dict(ledger.parts)) for source, ledger in received.items()} == {
        "handbook": (11, {"parsed": 10, "empty": 1, "rejected": {}}),
        "notes": (23, {"parsed": 19, "empty": 1, "rejected": {"lone_surrogate": 1, "not_an_object": 1, "unparsable": 1}}),
        "sayings": (11, {"parsed": 10, "empty": 1, "rejected": {}}),
        "sums": (10, {"parsed": 9, "empty": 0, "rejected": {"unparsable": 1}}),
    }
    local = {
        source: ledgers(project, "documents", source=source, snapshot=day)["documents"].parts
        for source, day in (("handbook", "2026-11-02"), ("notes", "2026-11-01"), ("sayings", "2026-11-01"), ("sums", "2026-11-01"))
    }
    none = {"empty": 0, "licence": 0, "language": 0}
    assert local == {
        "handbook": {"kept": 9, "dropped": {**none, "quality": 1}},
        "notes": {"kept": 18, "dropped": {**none, "quality": 1}},
        "sayings": {"kept": 8, "dropped": {**none, "quality": 2}},
        "sums": {"kept": 9, "dropped": {**none, "quality": 0}},
    }
    decided = ledgers(project, "decisions", release=RELEASE)["documents"]
    assert (decided.total, decided.parts["kept"]) == (48, 38)
    assert {reason: n for reason, n in decided.parts["dropped"].items() if n} == {"duplicate": 6, "quality": 4}  # type: ignore[union-attr]
    tokens = next(iter(project.lake.snapshots(stage="shards")[0].ledgers))
    assert (tokens.unit, tokens.total, tokens.parts["packed"]) == ("tokens", 2540, 2540)


def test_every_ledger_closes_and_agrees_with_the_next_state(ran: Path) -> None:
    project = Project.at(ran)
    made = 0
    for snapshot in project.lake.snapshots():
        for ledger in snapshot.ledgers:
            ledger.close()
        if snapshot.stage == "documents":
            by_unit = {ledger.unit: ledger for ledger in snapshot.ledgers}
            parent = project.lake.snapshot(snapshot.identity["parents"]["evidence"])
            assert parent is not None
            assert by_unit["payloads"].total == parent.ledgers[0].parts["parsed"]
            assert by_unit["documents"].total == by_unit["payloads"].parts["parsed"]
            made += by_unit["documents"].total
    decisions = project.lake.snapshots(stage="decisions")[0]
    assert decisions.ledgers[0].total == made
    kept = pl.DataFrame(project.lake.read(DECISIONS, decisions.version)).filter(pl.col("decision") == "keep").height
    assert kept == pl.DataFrame(project.lake.read(SHARDS, project.lake.snapshots(stage="shards")[0].version))["n_docs"].sum() == 38


def test_copies_are_found_across_sources_and_across_normal_forms(ran: Path) -> None:
    project = Project.at(ran)
    rows = pl.DataFrame(project.lake.read(CLUSTERS, project.lake.snapshots(stage="clusters")[0].version))
    documents = pl.concat(
        pl.DataFrame(project.lake.read(DOCUMENTS, snapshot.version, columns=["doc_id", "source", "record_key", "text", "collected_at"]))
        for snapshot in project.lake.snapshots(stage="documents")
    )
    joined = rows.join(documents, on="doc_id").filter(pl.col("cluster_size") > 1)
    sources = sorted(sorted(part["source"].to_list()) for _, part in joined.group_by("cluster_id"))
    assert sources == [
        ["handbook", "handbook"],
        ["handbook", "notes", "notes"],
        ["notes", "notes"],
        ["sayings", "sayings"],
        ["sums", "sums"],
    ]
    across = joined.filter(pl.col("cluster_size") == 3)
    survivor = across.filter(pl.col("doc_id") == pl.col("survivor_id"))
    assert survivor["source"].to_list() == ["notes"], "equally long, so the earliest survives"
    for _, part in joined.group_by("cluster_id"):
        assert part["text"].n_unique() == 1
        assert part["split"].n_unique() == 1


def test_rejects_say_where_and_why(ran: Path) -> None:
    project = Project.at(ran)
    (evidence,) = project.lake.snapshots(stage="evidence", partition={"source": "notes", "snapshot": "2026-11-01"})
    rows = pl.DataFrame(project.lake.read(EVIDENCE_REJECTS, evidence.version)).sort("record_key")
    assert rows["reason"].to_list() == ["unparsable", "lone_surrogate", "not_an_object"]
    data = (ran / "data" / "notes.jsonl").read_bytes()
    for key, digest, size in rows.select("record_key", "payload_sha256", "size_bytes").iter_rows():
        offset = int(key.split("#")[1])
        assert data[offset - 1 : offset] == b"\n"
        assert sha256_hex(data[offset : offset + size]) == digest


def test_shard_and_view_digests_are_these(ran: Path) -> None:
    project = Project.at(ran)
    assert shard_ids(project, project.lake.snapshots(stage="shards")[0].version) == IDS["shards"]
    assert candidate_id(project) == VIEW_ID
    assert sha256_hex(project.files.read_view("candidates", VIEW_ID)) == VIEW_ID


def test_a_candidate_is_not_loadable(ran: Path) -> None:
    with pytest.raises(ManifestError, match="candidates are not published"):
        RunView.open(Project.at(ran).files.view_place("candidates", VIEW_ID))


def test_the_published_view_delivers_every_pack_of_an_epoch_once(candidate: Project) -> None:
    view = RunView.open(publish(candidate, RELEASE))
    n_packs = {component.name: component.n_packs for component in view.manifest.components}
    assert n_packs == {"code": 7, "english": 17, "korean": 7, "sums": 9}
    once, mixed = view.manifest.stages
    assert (once.length, mixed.length) == (40, 32)
    names = list(n_packs)
    seen: dict[int, tuple[str, int, int, int]] = {}
    with Loader(view, micro_batch=4) as loader:
        for batch in loader:
            for position, (component, epoch, shard, pack) in zip(batch.positions.tolist(), batch.pack_ids.tolist(), strict=True):
                assert position not in seen
                seen[position] = (names[component], epoch, shard, pack)
    assert sorted(seen) == list(range(72))
    first = [place for position, place in seen.items() if position < once.length]
    assert len(set(first)) == 40, "the first stage is one epoch: every pack once"
    assert Counter(name for name, *_ in first) == n_packs
    assert {epoch for _, epoch, _, _ in first} == {0}
    assert len(set(seen.values())) == 72, "no pack twice in the same epoch of its component"
    assert Counter(name for position, (name, *_) in seen.items() if position >= once.length) == mixed.counts


def test_run_again_is_the_same_and_writes_nothing(candidate: Project) -> None:
    before, at = versions(candidate), commits(candidate)
    rerun = run_release(candidate)
    assert all(not title.startswith(("ingest", "clean")) for title in rerun.parts), "members of a sealed release are complete"
    assert versions(candidate) == before
    assert candidate_id(candidate) == VIEW_ID
    assert commits(candidate) == at


def test_another_order_of_members_gives_the_same_ids(ran: Path, tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    release = tmp_path / "project" / "releases" / "small.toml"
    lines = release.read_text().splitlines(keepends=True)
    members = [line for line in lines if "source =" in line]
    assert len(members) == 4
    start = lines.index(members[0])
    release.write_text("".join(lines[:start] + members[::-1] + lines[start + 4 :]))
    order = [("sums", "2026-11-01"), ("notes", "2026-11-01"), ("handbook", "2026-11-02"), ("sayings", "2026-11-01")]
    for _, make in chain.stages(project, members=order):
        make()
    assert versions(project) == versions(Project.at(ran))
    assert candidate_id(project) == VIEW_ID
    for snapshot in Project.at(ran).lake.snapshots():
        other = project.lake.snapshot(snapshot.version)
        assert other is not None
        made = {path: table.content_sha256 for path, table in other.tables.items() if path != "raw_evidence/evidence"}
        assert made == {path: table.content_sha256 for path, table in snapshot.tables.items() if path != "raw_evidence/evidence"}


@pytest.mark.slow
def test_another_threshold_makes_new_versions_beside_the_old(candidate: Project) -> None:
    old = publish(candidate, RELEASE)
    before = versions(candidate)
    add_release(Path(candidate.root), "strict", recipe_old='bound = 5\nkinds = ["prose"]', recipe_new='bound = 18\nkinds = ["prose"]')
    run_release(candidate, "strict")
    after = versions(candidate)
    assert set(before) < set(after)
    added = Counter(stage for stage, _ in set(after) - set(before))
    assert added == {"documents": 4, "clusters": 1, "decisions": 1, "shards": 1, "view": 1}, "evidence is the same"
    kept = {release: ledgers(candidate, "decisions", release=release)["documents"].parts["kept"] for release in (RELEASE, "strict")}
    assert kept[RELEASE] == 38
    assert kept["strict"] == 36
    new = publish(candidate, "strict")
    assert new != old
    for path in (old, new):
        with Loader(RunView.open(path), micro_batch=4) as loader:
            assert sum(1 for _ in loader) == len(loader)
    for _, version in after:
        candidate.lake.verify(version)


@pytest.mark.slow
def test_a_release_seals_what_its_sources_hold_now_and_not_what_was_collected_last(candidate: Project) -> None:
    root = Path(candidate.root)
    saying = root / "data" / "sayings.txt"
    original = saying.read_text()
    add_release(root, "changed")
    edit(saying, "The ferry to the island", "The last ferry to the island")
    run_release(candidate, "changed")
    add_release(root, "back")
    saying.write_text(original)
    run_release(candidate, "back")
    sealed = {name: {m.source: m.evidence_version for m in steps.require_sealed(candidate, name)} for name in (RELEASE, "changed", "back")}
    assert sealed["changed"]["sayings"] != sealed[RELEASE]["sayings"]
    assert sealed["back"] == sealed[RELEASE]


def test_a_recipe_changed_back_has_its_old_candidate_again(candidate: Project) -> None:
    recipe = Path(candidate.root) / "recipes" / "small.toml"
    edit(recipe, 'seed = "5eed0f20"', 'seed = "5eed0f21"')
    run_release(candidate)
    other = candidate_id(candidate)
    assert other != VIEW_ID
    edit(recipe, 'seed = "5eed0f21"', 'seed = "5eed0f20"')
    run_release(candidate)
    assert candidate_id(candidate) == VIEW_ID
    assert publish(candidate, RELEASE).stem == VIEW_ID


@pytest.mark.parametrize(
    ("old", "new"), [('\n    { source = "sums", dates = [2026-11-01] },', ""), ('recipe = "small"', 'recipe = "small"\nparent = "other"')]
)
def test_a_sealed_release_never_changes(candidate: Project, old: str, new: str) -> None:
    edit(Path(candidate.root) / "releases" / "small.toml", old, new)
    with pytest.raises(RecipeError, match="a sealed release never changes: write a new release file"):
        run_release(candidate)
