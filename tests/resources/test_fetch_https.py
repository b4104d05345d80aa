"""Files over HTTP from a real server on loopback: whole, of one version, within limits, by the host's rules."""

from __future__ import annotations

import gzip
import hashlib
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
import zstandard

from pipeline.errors import SourceError
from resources.fetch.retry import retry_after
from tests.support.landing import content, landed, of_urls, source_of
from tests.support.web import File, Web, site

DATA = bytes(range(256)) * 1024  # 256 KiB


def only(landing) -> bytes:
    (data,) = content(landing).values()
    return data


def test_files_land_with_what_is_known_of_them(tmp_path: Path) -> None:
    with site(**{"a.txt": b"one\n", "b.txt": b""}) as web:
        web.files["/b.txt"].etag = 'W/"weak"'
        landing = landed(of_urls(web.url("/a.txt"), web.url("/b.txt")), tmp_path)
        assert content(landing) == {f"{web.host}/a.txt": b"one\n", f"{web.host}/b.txt": b""}
        first, second = (landing.files[f"{web.host}/{name}"] for name in ("a.txt", "b.txt"))
        assert (first.size_bytes, first.sha256) == (4, hashlib.sha256(b"one\n").hexdigest())
        assert first.revision == first.etag == web.files["/a.txt"].tag
        assert (second.etag, second.revision) == ('W/"weak"', None)  # promises too little to be a revision
        assert first.url == web.url("/a.txt")
        assert abs(datetime.now(UTC) - first.fetched_at) < timedelta(minutes=5)
        n_asked = len(web.asked)
        again = landed(of_urls(web.url("/a.txt"), web.url("/b.txt")), tmp_path)
        assert again.files == landing.files
        assert len(web.asked) == n_asked  # complete: not asked for again


@pytest.mark.parametrize("cut", [100_000, 1])
def test_a_cut_body_is_continued(tmp_path: Path, cut: int) -> None:
    with site(a=DATA) as web:
        web.files["/a"].script = [("cut", cut), ("cut", 50_000)]
        assert only(landed(of_urls(web.url("/a")), tmp_path)) == DATA
        first, second, third = web.of("/a")
        assert "Range" not in first.headers
        assert second.headers["Range"] == f"bytes={first.sent}-"
        assert second.headers["If-Range"] == web.files["/a"].tag
        assert first.sent + second.sent + third.sent == len(DATA)  # nothing twice


@pytest.mark.parametrize(("etag", "ranges"), [('W/"w"', True), (None, True), ("auto", False)])
def test_without_a_strong_tag_or_ranges_the_file_starts_again(tmp_path: Path, etag: str | None, ranges: bool) -> None:
    with site(a=DATA) as web:
        web.files["/a"].etag, web.files["/a"].ranges = etag, ranges
        web.files["/a"].script = [("cut", 100_000)]
        assert only(landed(of_urls(web.url("/a")), tmp_path)) == DATA
        assert [one.status for one in web.of("/a")] == [200, 200]
        assert ("Range" in web.of("/a")[1].headers) is (etag == "auto")


@pytest.mark.parametrize("honest", [True, False])
def test_a_file_that_changes_on_the_way_is_never_joined(tmp_path: Path, honest: bool) -> None:
    other = DATA[::-1]
    with site(a=DATA) as web:

        def change() -> None:
            web.files["/a"].data = other
            if not honest:  # serves the rest of the new bytes although the tag it was given is of the old
                web.files["/a"].headers = {}
                web.dynamic = lambda path: None

        web.files["/a"].script = [("cut", 100_000), change]
        if not honest:
            lying = web.files["/a"]
            lying.etag = '"same"'
            lying.last_modified = "Sun, 01 Nov 2026 00:00:00 GMT"
            lying.script = [("cut", 100_000), lambda: setattr(lying, "data", other) or setattr(lying, "last_modified", "later")]
        assert only(landed(of_urls(web.url("/a")), tmp_path)) == other
        assert web.asked[-1].status == 200


def test_passing_answers_are_waited_for(tmp_path: Path) -> None:
    soon = format_datetime(datetime.now(UTC) - timedelta(seconds=5), usegmt=True)
    with site(a=b"x") as web:
        web.files["/a"].script = [("status", 503, {"Retry-After": soon}), ("status", 429, {"Retry-After": "0"})]
        assert only(landed(of_urls(web.url("/a")), tmp_path)) == b"x"
        web.files["/a"].script = [("status", 503, {"Retry-After": "86400"})]
        with pytest.raises(SourceError, match=r"answered 503; asked to wait 86400 s, at most 300 s are waited"):
            landed(of_urls(web.url("/a")), tmp_path / "other")
        web.files["/a"].script = [("status", 500)] * 3
        with pytest.raises(SourceError, match="gave up after 3 attempts without a new byte: answered 500"):
            landed(of_urls(web.url("/a")), tmp_path / "third")
        assert len(web.of("/a")) == 7
        web.files["/a"].script = [("status", 404)]
        with pytest.raises(SourceError, match=r"answered 404; expected 200"):
            landed(of_urls(web.url("/a")), tmp_path / "fourth")
        assert len(web.of("/a")) == 8  # no second attempt


def test_retry_after_values() -> None:
    assert retry_after("7") == 7
    assert retry_after("Sun, 01 Nov 2020 00:00:00 GMT") == 0
    assert retry_after(None) is retry_after("soon") is retry_after("-1") is None


def test_a_server_that_only_drips_is_given_up(tmp_path: Path) -> None:
    with site(a=DATA) as web:
        web.files["/a"].etag = None
        web.files["/a"].script = [("cut", 9), ("cut", 9), ("cut", 9), ("cut", 9)]
        with pytest.raises(SourceError, match="gave up after 3 attempts without a new byte"):
            landed(of_urls(web.url("/a")), tmp_path)


def test_silence_ends_an_attempt(tmp_path: Path) -> None:
    with site(a=DATA) as web:
        web.files["/a"].script = [
            lambda: setattr(web.files["/a"], "pause_seconds", 0.8),
            lambda: setattr(web.files["/a"], "pause_seconds", 0),
        ]
        assert only(landed(of_urls(web.url("/a")), tmp_path, RUNVIEW_FETCH_TIMEOUT_SECONDS="0.2")) == DATA
        assert len(web.of("/a")) == 2


def test_a_body_without_length_is_refused_and_a_chunked_one_is_not(tmp_path: Path) -> None:
    with site(a=DATA, b=DATA) as web:
        web.files["/a"].no_length = True
        with pytest.raises(SourceError, match="states no length"):
            landed(of_urls(web.url("/a")), tmp_path)
        web.files["/b"].chunked = True
        web.files["/b"].script = [("cut", 100_000)]
        assert only(landed(of_urls(web.url("/b")), tmp_path / "b")) == DATA


def test_redirects(tmp_path: Path) -> None:
    with site(a=b"x") as web:
        web.files["/b"] = File(script=[("status", 302, {"Location": "/c?token=hunter2"})] * 9)
        web.files["/c"] = File(script=[("status", 307, {"Location": web.url("/a")})] * 9)
        landing = landed(of_urls(web.url("/b")), tmp_path)
        assert content(landing) == {f"{web.host}/b": b"x"}
        assert "hunter2" not in (landing.folder / "landing.json").read_text()
        web.files["/loop"] = File(script=[("status", 301, {"Location": "/loop?token=hunter2"})] * 9)
        with pytest.raises(SourceError, match=r"more than 5 redirects, the last to http://.*/loop\?\.\.\.") as raised:
            landed(of_urls(web.url("/loop")), tmp_path / "loop")
        assert "hunter2" not in str(raised.value)
        assert len([one for one in web.asked if one.path.startswith("/loop")]) == 6
        web.files["/file"] = File(script=[("status", 302, {"Location": "file:///etc/hostname"})])
        with pytest.raises(SourceError, match="expected https, found 'file'"):
            landed(of_urls(web.url("/file")), tmp_path / "file")


def certificate(path: Path) -> Path:
    """A key and a certificate of its own for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(pem + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_https_never_steps_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = certificate(tmp_path / "own.pem")
    with site(a=b"x") as plain, Web(pem) as web:
        web.files["/down"] = File(script=[("status", 302, {"Location": plain.url("/a")})] * 2)
        web.files["/a"] = File(b"safe")
        with pytest.raises(SourceError, match="its certificate is not trusted"):
            landed(of_urls(web.url("/a")), tmp_path)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(pem))
        assert only(landed(of_urls(web.url("/a")), tmp_path, RUNVIEW_FETCH_ALLOW_HTTP="0")) == b"safe"
        with pytest.raises(SourceError, match="redirects from https to http; refused"):
            landed(of_urls(web.url("/down")), tmp_path / "down")  # also where plain http is allowed
        with pytest.raises(SourceError, match="is plain http; write https, or set RUNVIEW_FETCH_ALLOW_HTTP=1"):
            landed(of_urls(plain.url("/a")), tmp_path / "plain", RUNVIEW_FETCH_ALLOW_HTTP="")
        assert not plain.of("/a")


def test_limits(tmp_path: Path) -> None:
    with site(a=DATA, b=DATA) as web:
        both = [web.url("/a"), web.url("/b")]
        with pytest.raises(SourceError, match=r"2 files are listed, fetch.max_files is 1"):
            landed(of_urls(*both, more="max_files = 1"), tmp_path / "files")
        with pytest.raises(SourceError, match=rf"brings the snapshot to \d+ bytes or more, fetch.max_bytes is {len(DATA)}"):
            landed(of_urls(*both, more=f"max_bytes = {len(DATA)}"), tmp_path / "bytes")
        assert landed(of_urls(*both, more=f"max_bytes = {2 * len(DATA)}"), tmp_path / "enough").files
        web.files["/a"].chunked = True  # no length tells beforehand
        with pytest.raises(SourceError, match="fetch.max_bytes is 100000"):
            landed(of_urls(web.url("/a"), more="max_bytes = 100000"), tmp_path / "chunked")
        assert not list((tmp_path / "bytes").rglob("landing.json"))


def test_content_codings_are_removed_once(tmp_path: Path) -> None:
    text = b"line\n" * 1000
    one, two = gzip.compress(text, mtime=0), gzip.compress(gzip.compress(text, mtime=0), mtime=0)
    coded = {"Content-Encoding": "gzip"}
    with Web() as web:
        web.files |= {
            "/on-the-way.txt": File(one, headers=coded),
            "/stored.txt.gz": File(one, headers=coded),
            "/plain.txt.gz": File(one),
            "/both.txt.gz": File(two, headers=coded),
            "/z.txt": File(zstandard.compress(text), headers={"Content-Encoding": "zstd"}),
        }
        landing = landed(of_urls(*(web.url(path) for path in web.files)), tmp_path)
        found = {path.split("/")[1]: data for path, data in content(landing).items()}
        assert found == {
            "on-the-way.txt": text,
            "stored.txt.gz": one,
            "plain.txt.gz": one,
            "both.txt.gz": gzip.compress(text, mtime=0),
            "z.txt": text,
        }
        assert all(one.headers["Accept-Encoding"] == "identity" for one in web.asked)
        web.files = {"/b.txt": File(text, headers={"Content-Encoding": "br"})}
        with pytest.raises(SourceError, match="content coding 'br' was not asked for"):
            landed(of_urls(web.url("/b.txt")), tmp_path / "br")
        web.files = {"/b.txt": File(one[:-20], headers=coded)}
        with pytest.raises(SourceError, match="declared as gzip, but it is not, or it breaks off"):
            landed(of_urls(web.url("/b.txt")), tmp_path / "cut")
        web.files = {"/b.txt": File(gzip.compress(bytes(10**7)), headers=coded)}
        with pytest.raises(SourceError, match="decoded from gzip it is larger than"):
            landed(of_urls(web.url("/b.txt"), more="max_bytes = 1000000"), tmp_path / "bomb")


def test_robots_are_obeyed(tmp_path: Path) -> None:
    with site(**{"a.txt": b"x", "b.pdf": b"y"}) as web:
        web.files["/robots.txt"] = File(b"User-agent: *\nDisallow: /*.pdf$\n")
        assert landed(of_urls(web.url("/a.txt")), tmp_path).files
        with pytest.raises(SourceError, match=r"/b.pdf is disallowed to runview-pipeline by http://.*/robots.txt"):
            landed(of_urls(web.url("/b.pdf")), tmp_path / "b")
        assert not web.of("/b.pdf")
        assert landed(of_urls(web.url("/b.pdf"), more="respect_robots = false"), tmp_path / "own").files
        web.files["/c"] = File(script=[("status", 302, {"Location": "/b.pdf"})])
        with pytest.raises(SourceError, match="/b.pdf is disallowed"):  # also at the end of a redirect
            landed(of_urls(web.url("/c")), tmp_path / "c")
        web.files["/robots.txt"] = File(b"User-agent: runview-pipeline\nDisallow: /\n\nUser-agent: *\nAllow: /\n")
        with pytest.raises(SourceError, match="is disallowed"):
            landed(of_urls(web.url("/a.txt")), tmp_path / "named")


def test_unknown_robots(tmp_path: Path) -> None:
    with site(a=b"x") as web:
        assert landed(of_urls(web.url("/a")), tmp_path).files  # 404: no rules
        web.files["/robots.txt"] = File(script=[("status", 403)])
        assert landed(of_urls(web.url("/a")), tmp_path / "forbidden").files
        web.files["/robots.txt"] = File(script=[("status", 503)] * 9)
        with pytest.raises(SourceError, match=r"robots.txt did not answer: while its rules are unknown nothing is fetched"):
            landed(of_urls(web.url("/a")), tmp_path / "unreachable")
        assert len(web.of("/a")) == 2


def test_crawl_delay_is_kept(tmp_path: Path) -> None:
    with site(a=b"x", b=b"y") as web:
        web.files["/robots.txt"] = File(b"User-agent: *\nCrawl-delay: 400\n")
        with pytest.raises(SourceError, match="asks for 400 s between requests, at most 300 s"):
            landed(of_urls(web.url("/a")), tmp_path / "long")
        web.files["/robots.txt"] = File(b"User-agent: *\nCrawl-delay: 0.3\n")
        start = datetime.now(UTC)
        assert landed(of_urls(web.url("/a"), web.url("/b")), tmp_path).files
        assert datetime.now(UTC) - start >= timedelta(seconds=0.3)


@pytest.mark.parametrize("compressed", [False, True])
def test_an_index_of_addresses(tmp_path: Path, compressed: bool) -> None:
    with site(**{"d/a.txt": b"x", "d/b.txt": b"y"}) as web:
        text = f"# list\nd/a.txt\n\n{web.url('/d/b.txt')}\nd/a.txt\n".encode()
        name = "/paths.gz" if compressed else "/paths"
        web.files[name] = File(gzip.compress(text) if compressed else text)
        landing = landed(source_of(f'kind = "https"\nindex = "{web.url(name)}"'), tmp_path)
        assert content(landing) == {f"{web.host}/d/a.txt": b"x", f"{web.host}/d/b.txt": b"y"}
        for listed, message in (
            (b"https://u:hunter2@h/a\n", "holds a credential"),
            (b"# nothing\n", "lists nothing"),
            (b"\xff\n", "not UTF-8"),
        ):
            web.files["/bad"] = File(listed)
            with pytest.raises(SourceError, match=message) as raised:
                landed(source_of(f'kind = "https"\nindex = "{web.url("/bad")}"'), tmp_path / "bad")
            assert "hunter2" not in str(raised.value)


def test_names_that_meet(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="h/a is listed as a file and as a folder of h/a/b"):
        landed(of_urls("https://h/a", "https://h/a/b"), tmp_path)
    with pytest.raises(SourceError, match="two listed files have the path h/a"):
        landed(of_urls("https://h/a", "https://H/a"), tmp_path)


def test_an_unknown_host_is_named_without_its_secrets(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"robots.txt did not answer") as raised:
        landed(of_urls("http://nowhere.invalid/a?page=hunter2"), tmp_path)
    assert "hunter2" not in str(raised.value)
    with pytest.raises(SourceError, match=r"http://nowhere.invalid/a\?\.\.\.: gave up after 3 attempts") as raised:
        landed(of_urls("http://nowhere.invalid/a?page=hunter2", more="respect_robots = false"), tmp_path)
    assert "hunter2" not in str(raised.value)
