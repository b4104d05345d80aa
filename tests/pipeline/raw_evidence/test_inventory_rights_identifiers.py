import hashlib
import hmac
from dataclasses import replace

import pytest

from pipeline.errors import SourceError
from pipeline.raw_evidence.identifiers import DeletionKey
from pipeline.raw_evidence.inventory import Container, matches, summary
from pipeline.raw_evidence.rights import of_package, spdx


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("**/*", ["a", "a/b", "a/b.c"], [".a", "a/.b", ".a/b"]),
        ("**", ["a", "a/b"], [".a", "a/.b/c"]),
        ("*.md", ["a.md", "README.md"], ["a/b.md", ".md", "a.mdx", "A.MD"]),
        ("docs/**/*.md", ["docs/a.md", "docs/a/b/c.md"], ["docs/.x/a.md", "a/docs/b.md"]),
        ("docs/**", ["docs/a", "docs/a/b"], ["docs", "docsx/a"]),
        (".github/**/*", [".github/a", ".github/a/b"], [".github/.a"]),
        ("**/.env", [".env", "a/.env"], ["env"]),
        ("data-?[0-9]/[!a]*.gz", ["data-x7/b.gz"], ["data-x7/a.gz", "data-xy/b.gz", "data-/7/b.gz"]),
        ("a+(b).txt", ["a+(b).txt"], ["aab.txt"]),
        ("a[b", ["a[b"], ["ab"]),
    ],
)
def test_patterns(pattern, yes, no):
    assert [path for path in yes if not matches(path, pattern)] == []
    assert [path for path in no if matches(path, pattern)] == []


def test_inventory_digest():
    containers = [Container(f"f{i}", i, hashlib.sha256(b"%d" % i).hexdigest()) for i in range(5)]
    known = summary(containers)
    assert known == summary(reversed(containers))
    assert known == {
        "inventory": "45a8adbc1edc27b14029a74d2560f3c06797e3fab58512d9eb00cc33f49c3adb",
        "n_containers": 5,
        "size_bytes": 10,
    }
    changes = {"path": "other", "size_bytes": 99, "sha256": "0" * 64, "revision": "r1", "licence": "MIT"}
    digests = {summary([*containers[:4], replace(containers[4], **{name: value})])["inventory"] for name, value in changes.items()}
    assert len(digests | {known["inventory"]}) == len(changes) + 1
    with pytest.raises(SourceError, match="container f1 stands twice"):
        summary([*containers, containers[1]])


def test_licences():
    assert spdx("mit or apache-2.0") == "MIT OR Apache-2.0"
    assert spdx(" Unknown ") == "unknown"
    assert spdx("GPL-3.0-only WITH Classpath-exception-2.0") == "GPL-3.0-only WITH Classpath-exception-2.0"
    assert spdx("") is spdx("CC BY-SA 4.0") is spdx("proprietary") is spdx("MIT AND") is None
    mit, bsd = "License :: OSI Approved :: MIT License", "License :: OSI Approved :: BSD License"
    assert of_package("bsd-3-clause", stated="MIT", classifiers=[mit]) == "BSD-3-Clause"
    assert of_package(None, stated="Apache-2.0", classifiers=[bsd]) == "Apache-2.0"
    assert of_package(None, stated="Copyright 2026, all of us", classifiers=["License :: OSI Approved", mit, "Topic :: X"]) == "MIT"
    assert of_package(None, stated=None, classifiers=[bsd]) == "unknown"  # two or more licences have that name
    assert of_package(None, stated=None, classifiers=[mit, bsd]) == "unknown"
    assert of_package(None, stated="", classifiers=[]) == "unknown"


def test_deletion_keys():
    key = DeletionKey("k1", b"s" * 32)
    expected = hmac.new(b"s" * 32, b"field:mail\0a@example.org", "sha256").hexdigest()
    assert key.of("field:mail", "a@example.org") == f"k1:{expected}"
    assert key.of("field:mail", " a@example.org\n") == f"k1:{expected}"
    assert key.of("uri", "a@example.org") != f"k1:{expected}"
    assert key.of("uri", "\ud55c\uae00") == key.of("uri", "\u1112\u1161\u11ab\u1100\u1173\u11af")
    assert "ssss" not in repr(key)
    with pytest.raises(ValueError, match="32 bytes"):
        DeletionKey("k1", b"short")
    with pytest.raises(ValueError, match="key_id"):
        DeletionKey("a:b", b"s" * 32)
