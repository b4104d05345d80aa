"""Content kind and domain."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from pipeline.cleaned_docs.extract import METADATA_TYPE
from pipeline.cleaned_docs.kind import kinds
from pipeline.recipe import Source

CASES = Path(__file__).parents[2] / "cases"
DATA = Path(__file__).parents[3] / "pipeline" / "data"
PYTHON = "import os\n\ndef main():\n    for p in os.listdir('.'):\n        print(p)\n"


def one(text, key="file#0", media_type="text/plain", **source):
    made = Source(**{"name": "s", "reader": "tree", "consent_basis": "given", "domain": "declared", **source})
    kind, domain = kinds(pl.Series([text]), pl.Series([key]), pl.Series([media_type]), source=made)
    return kind[0], domain[0]


def test_declared_kind_is_not_questioned():
    assert one(PYTHON, "a.py#0", kind="prose") == ("prose", "declared")


def test_conversations_are_chat():
    assert one("### user\nx = 1;", reader="jsonl", fields={"messages": ("messages",)}) == ("chat", "declared")


@pytest.mark.parametrize(
    ("key", "domain"),
    [
        ("pkg/a.py#0", "python"),
        ("b.RS#0", "rust"),
        ("c.cpp.gz#0", "cpp"),
        ("x/d.yaml#0", "yaml"),
        ("e.h", "c"),
        ("v1.2/f.js#0", "javascript"),
    ],
)
def test_suffix_decides_code_and_its_language(key, domain):
    assert one("These are plain words, but the suffix has been told to us.", key) == ("code", domain)


def test_media_type_decides_where_there_is_no_suffix():
    assert one("words", "script#0", "text/x-python") == ("code", "python")


def test_suffix_of_a_container_says_nothing_about_its_records():
    assert one("A sentence of plain words stands here.", "data.json#12", "application/json", reader="jsonl", fields={"text": ("t",)}) == (
        "prose",
        "declared",
    )


def test_documents_for_people_are_never_code():
    assert one(PYTHON, "README.md#0", "text/markdown")[0] == "prose"
    assert one(PYTHON, "x.dist-info/METADATA#0", METADATA_TYPE)[0] == "prose"
    assert one(PYTHON, "noname#0")[0] == "code"


def test_code_without_suffix_has_the_declared_domain():
    assert one("for(i=0;i<n;i++){s+=a[i];}") == ("code", "declared")


def test_cases_c09_and_c10_are_routed_before_language():
    truth = {"l4": "code", "l5": "math", "q2": "code", "q3": "math"}
    for name in ("C09/lang.jsonl", "C10/quality.jsonl"):
        for line in (CASES / name).read_text().splitlines():
            row = json.loads(line)
            assert one(row["text"])[0] == truth.get(row["id"], "prose"), row["id"]


@pytest.mark.parametrize(
    "text", ["It costs $5 or $6 in the shop; we paid $7.", "Open C:\\Users\\name\\Documents and look.", "이건 별로;;", ""]
)
def test_prose_with_marks_stays_prose(text):
    assert one(text)[0] == "prose"


def test_the_projects_own_texts():
    share = {}
    for name in ("korean", "mathematics"):
        rows = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
        found = [one(row["title"] + "\n\n" + row["text"], reader="jsonl", fields={"text": ("title", "text")})[0] for row in rows]
        share[name] = {kind: found.count(kind) / len(found) for kind in set(found)}
    assert share["korean"]["prose"] == 1.0
    assert share["mathematics"]["math"] > 0.8
