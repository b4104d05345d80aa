"""Addresses: what is shown, what is refused, where files lie; and [fetch] of a source file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import RecipeError
from pipeline.recipe import parse_source, source_from_identity
from pipeline.urls import credential_in, file_path, shown

HEAD = 'name = "faq"\nreader = "text"\nconsent_basis = "test"\n'
HUB = 'kind = "hub"\ndataset = "org/name"\nrevision = "v1"\n'


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("https://Example.org/a/b.jsonl.gz", "example.org/a/b.jsonl.gz"),
        ("https://example.org:8443/a", "example.org_8443/a"),
        ("https://example.org", "example.org/index"),
        ("https://example.org/dir/", "example.org/dir/index"),
        ("https://example.org/%ED%95%9C.txt", "example.org/한.txt"),
        ("https://example.org/a.jsonl?id=3", "example.org/a@9c5e4a9d2f1e.jsonl"),
    ],
)
def test_file_paths(url: str, path: str) -> None:
    found = file_path(url)
    if "?" in url:
        assert found.startswith("example.org/a@")
        assert found.endswith(".jsonl")
        assert found != file_path(url + "4")
    else:
        assert found == path


@pytest.mark.parametrize("path", ["/../x", "/a/./b", "/a/%2e%2e/b", "/a%2Fb", "/a//b", "/%00", "/%ff"])
def test_paths_that_leave_their_folder(path: str) -> None:
    with pytest.raises(ValueError, match=r"path"):
        file_path(f"https://example.org{path}")


def test_long_names_are_cut_and_stay_apart() -> None:
    first, second = (file_path(f"https://h/{'x' * 300}{end}.jsonl") for end in "ab")
    assert first != second
    assert len(first.split("/")[1].encode()) <= 200
    assert first.endswith(".jsonl")


@given(st.text(st.characters(codec="utf-8", exclude_characters="#")))
def test_any_path_stays_below_its_host_or_is_refused(text: str) -> None:
    try:
        names = file_path(f"https://h/{text}").split("/")
    except ValueError:
        return
    assert names[0] == "h"
    assert not {"", ".", ".."} & set(names)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://u:p@h/a", "user"),
        ("https://h/a?X-Amz-Signature=1", "X-Amz-Signature"),
        ("https://h/a?access_token=1", "access_token"),
        ("https://h/a?b=1&key=2", "key"),
        ("https://h/a?sig=", "sig"),
        ("https://h/a?page=3&design=x&keyword=y", None),
        ("s3://bucket/a", None),
    ],
)
def test_credentials_are_found(url: str, found: str | None) -> None:
    assert credential_in(url) == found


def test_shown_keeps_no_secret() -> None:
    assert shown("https://u:secret@h:1/a?token=secret#secret") == "https://h:1/a?..."
    assert shown("https://[secret") == "(no URL)"


@pytest.mark.parametrize(
    ("fetch", "message"),
    [
        ('kind = "htps"', r"fetch.kind = 'htps' is not known, did you mean 'https'"),
        ('kind = "https"\nurl = ["https://h/a"]', r"fetch.url must be str, found list"),
        ('kind = "https"\nursl = ["https://h/a"]', r"unknown key 'fetch.ursl', did you mean 'url"),
        ('kind = "https"', r"needs either `urls` or `index`"),
        ('kind = "https"\nurls = ["https://h/a"]\nindex = "https://h/i"', r"needs either `urls` or `index`"),
        ('kind = "https"\nurls = ["https://h/a", "https://h/a"]', r"fetch.urls 'https://h/a' stands twice"),
        ('kind = "https"\nurls = ["ftp://h/a"]', r"must be an address like https://"),
        ('kind = "https"\nurls = ["https://u:hunter2@h/a"]', r"https://h/a holds what looks like a credential \(user\)"),
        ('kind = "https"\nindex = "https://h/i?token=hunter2"', r"looks like a credential \(token\)"),
        ('kind = "https"\nurls = ["https://h/a"]\nrevision = "x"', r"fetch.revision is no key of kind https"),
        ('kind = "https"\nurls = ["https://h/a"]\nmax_bytes = 0', r"fetch.max_bytes must be at least 1"),
        ('kind = "s3"', r"kind s3 needs `url`"),
        ('kind = "s3"\nurl = "https://b/p"', r"must be an address like s3://"),
        ('kind = "hub"', r"kind hub needs `dataset`"),
        ('kind = "hub"\ndataset = "name"', r"fetch.dataset must be org/name"),
        ('kind = "hub"\ndataset = "org/name"\ninclude = []', r"fetch.include is empty"),
        ('kind = "hub"\ndataset = "org/name"\nrevision = "a b"', r"found blanks"),
    ],
)
def test_fetch_errors(fetch: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as raised:
        parse_source(f"{HEAD}[fetch]\n{fetch}\n", where="faq.toml")
    assert "hunter2" not in str(raised.value)


def test_fetch_goes_without_location_and_into_the_identity() -> None:
    with pytest.raises(RecipeError, match="`location` is not written beside"):
        parse_source(f'{HEAD}location = "x"\n[fetch]\n{HUB}', where="faq.toml")
    environment = 'reader = "python_environment"\npackages = ["*"]\nselect = "code"'
    with pytest.raises(RecipeError, match="leave out"):
        parse_source(HEAD.replace('reader = "text"', environment) + f"[fetch]\n{HUB}", where="faq.toml")
    plain = parse_source(f'{HEAD}location = "x"\n', where="faq.toml")
    assert "fetch" not in plain.identity()
    source = parse_source(f"{HEAD}[fetch]\n{HUB}", where="faq.toml")
    assert source.identity()["fetch"] == {"kind": "hub", "dataset": "org/name", "revision": "v1", "include": ["**/*"]}
    assert source_from_identity(source.identity()).identity() == source.identity()
    looser = parse_source(f"{HEAD}[fetch]\n{HUB}max_bytes = 9\nmax_files = 1\nrespect_robots = false\n", where="faq.toml")
    assert looser.identity() == source.identity()
    other = parse_source(f"{HEAD}[fetch]\n{HUB}".replace("v1", "v2"), where="faq.toml")
    assert other.identity() != source.identity()
