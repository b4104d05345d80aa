import base64
import hashlib
import io
import os
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import RecipeError, SourceError
from pipeline.raw_evidence.capture import capture, stage_version
from pipeline.raw_evidence.identifiers import DeletionKey
from pipeline.raw_evidence.readers import parquet
from pipeline.recipe import Source
from resources import sources

TREE = Source("notes", "tree", "licence", location="data")


@pytest.fixture
def base(tmp_path):
    for path, data in {
        "a.md": b"# a\n",
        "sub/b.py": b"b = 1\n",
        "sub/deep/c.txt": b"c\n",
        ".hidden/d.md": b"d\n",
        "sub/.e": b"e\n",
    }.items():
        place = tmp_path / "data" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return tmp_path


def paths(source, base, **values):
    return [found.path for found in sources.take_inventory(source, base, **values)]


def test_files_by_name(tmp_path):
    own, packaged = tmp_path / "own", tmp_path / "packaged"
    own.mkdir()
    packaged.mkdir()
    text = 'name = "notes"\nreader = "tree"\nlocation = "."\nconsent_basis = "own"\n'
    (packaged / "notes.toml").write_text(text)
    assert sources.load_source("notes", [own, packaged]).name == "notes"
    (own / "notes.toml").write_text(text.replace('"own"', '"mine"'))
    assert sources.load_source("notes", [own, packaged]).consent_basis == "mine"
    with pytest.raises(RecipeError, match=r"source 'notse': no notse.toml in \['own', 'packaged'\]; did you mean 'notes'\?"):
        sources.load_source("notse", [own, packaged])
    with pytest.raises(RecipeError, match=r"recipe 'zzz'.*known are \['notes'\]"):
        sources.load_recipe("zzz", [own])
    (own / "other.toml").write_text(text)
    with pytest.raises(RecipeError, match=r"other.toml: name is 'notes', expected 'other'"):
        sources.load_source("other", [own])
    (own / "wrong.toml").write_bytes(b"\xff")
    with pytest.raises(RecipeError, match=r"wrong.toml: cannot be read"):
        sources.load_release("wrong", [own])
    (own / "r.toml").write_text('name = "r"\nrecipe = "x"\nmembres = []\n')
    with pytest.raises(RecipeError, match=r"r.toml: unknown key 'membres', did you mean 'members'\?"):
        sources.load_release("r", [own])


def test_inventory(base):
    found = sources.take_inventory(TREE, base)
    assert [c.path for c in found] == ["a.md", "sub/b.py", "sub/deep/c.txt"]
    assert (found[0].size_bytes, found[0].sha256) == (4, hashlib.sha256(b"# a\n").hexdigest())
    assert paths(replace(TREE, include=("**/*.md", ".hidden/*")), base) == [".hidden/d.md", "a.md"]
    assert paths(replace(TREE, exclude=("sub/**",)), base) == ["a.md"]
    assert paths(replace(TREE, location="data/sub/b.py"), base) == ["b.py"]


def test_inventory_refusals(base):
    with pytest.raises(SourceError, match="location 'nowhere' does not exist"):
        paths(replace(TREE, location="nowhere"), base)
    with pytest.raises(SourceError, match="empty, no file is selected"):
        paths(replace(TREE, exclude=("**",)), base)
    with pytest.raises(SourceError, match=r"include pattern '\*.jsonl' selects none of 5 files"):
        paths(replace(TREE, include=("a.md", "*.jsonl")), base)
    (base / "empty").mkdir()
    with pytest.raises(SourceError, match="empty, no file is selected"):
        paths(replace(TREE, location="empty"), base)
    os.mkfifo(base / "data" / "pipe")
    with pytest.raises(SourceError, match="pipe is no regular file"):
        paths(TREE, base)
    os.remove(base / "data" / "pipe")
    with open(os.fsencode(base / "data") + b"/\xff.txt", "wb") as file:
        file.write(b"x")
    with pytest.raises(SourceError, match=r"file name .* is not UTF-8"):
        paths(TREE, base)


def test_links(base):
    outside = base / "outside"
    outside.mkdir()
    (outside / "x.md").write_bytes(b"x\n")
    (base / "data" / "inner.md").symlink_to(base / "data" / "a.md")
    (base / "data" / "twin").symlink_to(base / "data" / "sub")
    assert paths(TREE, base) == ["a.md", "inner.md", "sub/b.py", "sub/deep/c.txt"]
    for name, target, what in (
        ("f.md", outside / "x.md", "leaves"),
        ("folder", outside, "leaves"),
        ("gone.md", base / "gone", "leads nowhere"),
    ):
        link = base / "data" / name
        link.symlink_to(target)
        with pytest.raises(SourceError, match=f"link {name} {what}"):
            paths(TREE, base)
        assert len(paths(replace(TREE, exclude=(name,)), base)) == 4
        link.unlink()


@contextmanager
def nobody():
    """As a user who owns nothing, also when the tests run as root, whom no mode stops."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_may_not_be_read_is_named():
    # not below tmp_path, whose parents another user may not enter
    with TemporaryDirectory() as folder:
        base = Path(folder)
        base.chmod(0o755)
        (base / "data" / "sub").mkdir(parents=True)
        locked = base / "data" / "a.md"
        locked.write_bytes(b"a\n")
        known, *_ = sources.take_inventory(TREE, base)
        locked.chmod(0)
        with nobody():
            with pytest.raises(SourceError, match=r"file a.md cannot be read: Permission denied"):
                sources.take_inventory(TREE, base)
            with pytest.raises(SourceError, match=r"container a.md cannot be read: Permission denied"):
                sources.open_container(TREE, base, known)
        (base / "data" / "sub").chmod(0)
        with nobody(), pytest.raises(SourceError, match="folder sub cannot be listed: Permission denied"):
            sources.take_inventory(TREE, base)
        (base / "data" / "sub").chmod(0o755)


def test_a_container_is_the_one_of_the_inventory(base):
    found, *_ = sources.take_inventory(TREE, base)
    with sources.open_container(TREE, base, found) as stream:
        assert stream.read() == b"# a\n"
    with sources.open_container(TREE, base, found) as stream:
        stream.read(1)  # stopping early still checks all of it
    for data in (b"# b\n", b"# a\n#", b"# a", b""):
        (base / "data" / "a.md").write_bytes(data)
        with (
            pytest.raises(SourceError, match=r"container a.md changed while it was read: expected 4 bytes"),
            sources.open_container(TREE, base, found),
        ):
            pass
    (base / "data" / "a.md").unlink()
    with pytest.raises(SourceError, match=r"container a.md cannot be read: No such file"):
        sources.open_container(TREE, base, found)


def test_a_container_that_changes_in_the_middle(base):
    place = base / "data" / "big.txt"
    place.write_bytes(b"a" * 3_000_000)
    found = next(c for c in sources.take_inventory(TREE, base) if c.path == "big.txt")
    stream = sources.open_container(TREE, base, found)
    stream.read(1_000_000)
    with place.open("r+b") as file:
        file.seek(2_500_000)
        file.write(b"b")
    stream.read()
    with pytest.raises(SourceError, match="changed while it was read"):
        stream.close()
    assert stream.closed


def test_a_jumping_reader_is_checked_too(base):
    place = base / "data" / "p.parquet"
    rows = [f"row {i}" for i in range(20000)]
    pq.write_table(pa.table({"text": rows}), place)
    source = Source("p", "parquet", "licence", location="data/p.parquet", fields={"text": ("text",)})
    (found,) = sources.take_inventory(source, base)
    with sources.open_container(source, base, found) as stream:
        assert len(list(parquet.read(stream, found.path, source))) == len(rows)
    stream = sources.open_container(source, base, found)
    list(parquet.read(stream, found.path, source))
    pq.write_table(pa.table({"text": rows[::-1]}), place)
    with pytest.raises(SourceError, match="changed while it was read"):
        stream.close()


def wheel(site, name, files, *, version="1.0", metadata="", hashed=True):
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {**files, f"{info}/METADATA": f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{metadata}\nAbout {name}.\n".encode()}
    lines = [f"{info}/RECORD,,", f"{info}/INSTALLER,sha256=zz,4", "../../bin/tool,sha256=zz,3"]
    for path, data in files.items():
        place = site / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={value},{len(data)}" if hashed else f"{path},,")
    (site / info / "RECORD").write_text("\n".join(lines) + "\n")


def test_installed_packages(tmp_path):
    site = tmp_path / "site"
    wheel(
        site,
        "Some_Pkg",
        {"some/__init__.py": b"", "some/a.py": b"a = 1\n", "some/LICENSE.txt": b"MIT\n"},
        metadata="License-Expression: MIT\n",
    )
    wheel(site, "other", {"other.py": b"o = 1\n"}, metadata="Classifier: License :: OSI Approved :: BSD License\n")
    wheel(site, "unhashed", {"unhashed.py": b"u = 1\n"}, hashed=False)
    wheel(site, "runview", {"runview/x.py": b"x = 1\n"})
    code = Source("env", "python_environment", "open licences", packages=("*",), select="code")
    found = sources.take_inventory(code, tmp_path, environment=site)
    assert [(c.path, c.licence) for c in found] == [("other.py", "unknown"), ("some/__init__.py", "MIT"), ("some/a.py", "MIT")]
    prose = replace(code, select="prose", packages=("some.pkg",))
    assert paths(prose, tmp_path, environment=site) == ["Some_Pkg-1.0.dist-info/METADATA", "some/LICENSE.txt"]
    with pytest.raises(SourceError, match=r"package 'some-pkgs' is not installed; did you mean 'some-pkg'\?"):
        paths(replace(code, packages=("Some-Pkgs",)), tmp_path, environment=site)
    with pytest.raises(SourceError, match="empty, no file is selected"):
        paths(replace(code, packages=("runview",)), tmp_path, environment=site)

    done = capture(
        code, date(2026, 11, 1), sources.open_all(code, tmp_path, found, environment=site),
        version=stage_version(code, date(2026, 11, 1), found).version, deletion_key=DeletionKey("k", b"k" * 32), put_blob=str,
    )  # fmt: skip
    assert done.ledgers[0].line().startswith("in=3 parsed=2 empty=1 rejected={}")
    assert done.evidence.select(["record_key", "licence", "media_type"]).to_pylist() == [
        {"record_key": "other.py#0", "licence": "unknown", "media_type": "text/x-python"},
        {"record_key": "some/a.py#0", "licence": "MIT", "media_type": "text/x-python"},
    ]
    (site / "some/a.py").write_bytes(b"a = 2\n")
    with pytest.raises(SourceError, match=r"installed file some/a.py is not what RECORD lists"):
        paths(code, tmp_path, environment=site)


def test_the_running_environment_is_the_default(tmp_path):
    source = Source("env", "python_environment", "open licences", packages=("pytest",), select="prose")
    found = sources.take_inventory(source, tmp_path)
    assert any(c.path.endswith("dist-info/METADATA") for c in found)
    with sources.open_container(source, tmp_path, found[0]) as stream:
        assert isinstance(stream, io.BufferedIOBase)
        assert hashlib.sha256(stream.read()).hexdigest() == found[0].sha256
