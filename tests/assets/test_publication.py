"""Publication: refused for every reason it should be, with nothing under `views/`, and verified when it happens."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from assets import steps, view_steps
from assets.runner import RunFailed, Runner
from pipeline.errors import ApprovalError, LakeError, PipelineError, ViewError
from pipeline.governance.approvals import approval_document, approval_id
from pipeline.ids import canonical_json, sha256_hex
from pipeline.schemas import APPROVALS, RUN_VIEWS
from resources.project import Project
from runview import Loader, RunView
from runview.errors import RunviewError
from tests.support.project import RELEASE, VIEW, commits, edit, run_release, views


def sign(project: Project, *, approver: str = "", decision: str = "approve") -> str:
    return view_steps.sign_approval(project, VIEW, approver=approver, decision=decision, nonce=os.urandom(8).hex())


def publish(project: Project) -> view_steps.Published:
    release = project.release(RELEASE)
    return view_steps.publish_view(project, release, project.recipe(release.recipe), run_id="test")


def manifest_path(project: Project, folder: str = "candidates") -> Path:
    return Path(project.files.view_place(folder, view_steps.current_candidate(project, VIEW)["view_id"]))


def refused(project: Project, kind: type[PipelineError], message: str) -> None:
    """Publication raises, and leaves neither a file nor a row."""
    with pytest.raises(kind, match=message):
        publish(project)
    assert views(project) == []
    assert {row["status"] for row in project.lake.table(RUN_VIEWS).to_pylist()} == {"candidate"}


def test_without_an_approval(candidate: Project) -> None:
    refused(candidate, ApprovalError, "runviewctl approve")


def test_the_asset_refuses_too_whoever_starts_it(candidate: Project) -> None:
    runner = Runner(candidate, dg.DagsterInstance.ephemeral())
    runner.register("run_views", VIEW)
    with pytest.raises(RunFailed, match="runviewctl approve"):
        runner.publish(VIEW)
    assert views(candidate) == []


def test_an_approval_of_another_digest(candidate: Project) -> None:
    """Signed in earnest, but for other bytes, and filed under this view's id."""
    view_id = manifest_path(candidate).stem
    rules = view_steps.rules_in_force(candidate)
    document = approval_document(
        "publish", "ab" * 32, approver="demo-reviewer", proposer=candidate.proposer, rules=rules, now=steps.now(), nonce="01"
    )
    signature = candidate.keystore.sign("demo-reviewer", document, "publish")
    row = {
        "approval_id": approval_id(document, signature), "kind": "publish", "subject": view_id, "document": document,
        "signature": signature, "received_at": steps.now(),
    }  # fmt: skip
    candidate.lake.insert(APPROVALS, pa.Table.from_pylist([row], schema=APPROVALS.schema))
    refused(candidate, ApprovalError, f"is about {'ab' * 32}, not these bytes")


def test_a_signed_document_that_was_changed_to_name_this_view(candidate: Project) -> None:
    sign(candidate)
    (row,) = candidate.lake.table(APPROVALS).to_pylist()
    fields = {**json.loads(row["document"]), "approver": "demo-reviewer", "nonce": "other"}
    forged = {**row, "document": canonical_json(fields), "approval_id": "cd" * 32}
    candidate.lake.insert(APPROVALS, pa.Table.from_pylist([forged], schema=APPROVALS.schema))
    with pytest.raises(ApprovalError, match="signature is refused"):
        view_steps.require_quorum(
            [(forged["document"], forged["signature"])], kind="publish", subject=row["subject"], proposer=candidate.proposer,
            rules=view_steps.rules_in_force(candidate), now=steps.now(),
        )  # fmt: skip
    assert publish(candidate).approvers == ("demo-reviewer",), "the true one still counts, the forged one does not"


def test_a_candidate_that_was_edited_by_hand(candidate: Project) -> None:
    sign(candidate)
    path = manifest_path(candidate)
    path.write_bytes(path.read_bytes().replace(b'"seq_len":64', b'"seq_len":63'))
    refused(candidate, LakeError, f"candidates/{path.stem}.json: .* expected {path.stem}")


def test_c29_a_changed_manifest_with_a_checksum_of_its_own(candidate: Project) -> None:
    """The changed bytes agree with their own name, the approval is of the old ones: refused, whatever is filed beside them."""
    folder = Path(__file__).parents[1] / "cases" / "C29"
    case = json.loads((folder / "approval.json").read_text())
    changed_bytes = (folder / "manifest_changed.json").read_bytes()
    assert sha256_hex((folder / "manifest_approved.json").read_bytes()) == case["manifest_sha256"]
    assert (folder / "SHA256SUMS_recomputed").read_text().split()[0] == sha256_hex(changed_bytes) != case["manifest_sha256"]

    approved = sign(candidate)
    data = manifest_path(candidate).read_bytes()
    changed = data.replace(b'"tail_batch":"masked_pad"', b'"tail_batch":"drop"')
    assert changed != data
    other = sha256_hex(changed)
    candidate.files.put_view("candidates", other, changed)
    with pytest.raises(LakeError, match=f"candidates/{approved}.json: the bytes have digest {other}"):
        candidate.files.put_view("candidates", approved, changed)
    with pytest.raises(ApprovalError, match="no candidate named"):
        view_steps.sign_approval(candidate, other, approver="", decision="approve", nonce="02")
    published = publish(candidate)
    assert published.view_id == approved
    assert Path(published.path).read_bytes() == data, "read back, it is what was approved"
    assert views(candidate) == [f"{approved}.json", f"{approved}.record.json"]


def _corrupt(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["shards", "packs", "catalogs", "stats"])
def test_a_file_that_was_damaged_after_the_approval(candidate: Project, kind: str) -> None:
    sign(candidate)
    damaged = next(Path(candidate.files.root, kind).rglob("*.safetensors"))
    _corrupt(damaged)
    refused(candidate, ViewError, damaged.stem)


def test_a_shard_that_is_gone_after_the_approval_and_comes_back_by_a_run(candidate: Project) -> None:
    sign(candidate)
    gone = next(Path(candidate.files.root, "shards").rglob("*.safetensors"))
    data = gone.read_bytes()
    gone.unlink()
    refused(candidate, ViewError, gone.stem)
    run_release(candidate)
    assert gone.read_bytes() == data
    assert Path(publish(candidate).path).exists()


def test_a_candidate_file_that_is_gone_comes_back_by_a_run(candidate: Project) -> None:
    path = manifest_path(candidate)
    data = path.read_bytes()
    path.unlink()
    run_release(candidate)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("policy.toml", "valid_days = 30", "valid_days = 31"), ("allowed_signers", "\n", "\n# another comment\n")],
    ids=["policy", "signers"],
)
def test_an_approval_lapses_with_the_policy(candidate: Project, name: str, old: str, new: str) -> None:
    sign(candidate)
    edit(Path(candidate.keys_root) / name, old, new)
    refused(candidate, ApprovalError, "policy or signers have changed since")
    sign(candidate)
    assert publish(candidate).approvers == ("demo-reviewer",)


def test_the_proposer_does_not_count(candidate: Project) -> None:
    sign(candidate, approver="demo-proposer")
    refused(candidate, ApprovalError, "proposer")


def test_a_rejection_refuses_whatever_else_is_filed(candidate: Project) -> None:
    sign(candidate)
    sign(candidate, decision="reject")
    refused(candidate, ApprovalError, "rejected by demo-reviewer")


def test_two_signatures_of_one_person_are_one(candidate: Project) -> None:
    edit(Path(candidate.keys_root) / "policy.toml", "publish = 1", "publish = 2")
    sign(candidate)
    sign(candidate)
    refused(candidate, ApprovalError, "2")


def test_an_unknown_approver_or_view(candidate: Project) -> None:
    with pytest.raises(ApprovalError, match="no private key for 'nobody'"):
        sign(candidate, approver="nobody")
    with pytest.raises(ApprovalError, match="no candidate named 'small-vew'"):
        view_steps.sign_approval(candidate, "small-vew", approver="", decision="approve", nonce="01")
    assert candidate.lake.table(APPROVALS).num_rows == 0


def test_published_once_verified_by_the_loader_and_again_is_nothing(candidate: Project) -> None:
    approved = sign(candidate)
    runner = Runner(candidate, dg.DagsterInstance.ephemeral())
    runner.register("run_views", VIEW)
    runner.publish(VIEW)
    path = Path(candidate.files.view_place("views", approved))
    assert path.read_bytes() == manifest_path(candidate).read_bytes()
    record = json.loads(candidate.files.read_record(approved))
    assert record["approval"] == "demo"
    assert record["view_id"] == approved
    (entry,) = runner.instance.fetch_materializations(dg.AssetKey("run_view"), limit=1).records
    metadata = entry.asset_materialization.metadata
    assert metadata["view_id"].value == approved
    assert (metadata["policy"].value, metadata["approved_by"].value) == ("demo", "demo-reviewer")

    view = RunView.open(path, allowed_signers=Path(candidate.keys_root) / "allowed_signers")
    assert [one.principal for one in view.approvals] == ["demo-reviewer"]
    with Loader(view, micro_batch=2) as loader:
        assert next(loader).input_ids.shape == (2, 64)

    before, files = commits(candidate), {p: p.stat().st_mtime_ns for p in Path(candidate.files.root).rglob("*") if p.is_file()}
    again = publish(candidate)
    assert (again.reused, again.view_id, again.approvers) == (True, approved, ("demo-reviewer",))
    runner.publish(VIEW)
    assert commits(candidate) == before
    assert {p: p.stat().st_mtime_ns for p in Path(candidate.files.root).rglob("*") if p.is_file()} == files


@pytest.mark.parametrize("change", [lambda p: p.write_bytes(p.read_bytes() + b" "), lambda p: _corrupt(p)], ids=["longer", "damaged"])
def test_a_published_manifest_edited_by_hand_is_refused_by_loader_and_publication(
    candidate: Project, change: Callable[[Path], object]
) -> None:
    approved = sign(candidate)
    path = Path(publish(candidate).path)
    change(path)
    with pytest.raises(RunviewError, match=f"sha256 {approved} expected from its name"):
        RunView.open(path)
    with pytest.raises(LakeError, match=f"views/{approved}.json"):
        publish(candidate)


def test_a_cursor_of_another_view_is_refused(candidate: Project) -> None:
    sign(candidate)
    first = RunView.open(publish(candidate).path)
    edit(Path(candidate.root) / "recipes" / "small.toml", 'seed = "5eed0f20"', 'seed = "5eed0f21"')
    run_release(candidate)
    sign(candidate)
    second = RunView.open(publish(candidate).path)
    assert first.view_id != second.view_id
    with Loader(first, micro_batch=4) as loader:
        next(loader)
        state = loader.state_dict()
    with Loader(second, micro_batch=4) as loader, pytest.raises(RunviewError, match="view_id"):
        loader.load_state_dict(state)
