"""What README and docs say is there: commands, tree, links. And what a fresh clone runs: the Makefile, word for word."""

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from assets.cli import _parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("loader/*.md"), *ROOT.glob("benchmarks/*.md")})
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = ["demo", "test", "lint", "ui", "docs", "clean"]
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not on this machine")
needs_git = pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="not a git checkout")


def code(text: str) -> list[str]:
    """Fenced and indented lines, and what stands in backticks."""
    fenced = [line for block in re.findall(r"^```.*?\n(.*?)^```", text, re.M | re.S) for line in block.splitlines()]
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return fenced + re.findall(r"^    (.+)$", rest, re.M) + re.findall(r"`([^`\n]+)`", rest)


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.M | re.S)
    assert found, f"README has no section {title!r}"
    return found[1]


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


# Commands


def test_the_commands_of_the_readme_are_targets() -> None:
    phony = re.search(r"^\.PHONY:(.*)$", MAKEFILE, re.M)
    assert phony
    rules = set(re.findall(r"^([a-z]+):", MAKEFILE, re.M))
    assert set(phony[1].split()) == rules, "every command is declared as one, and the reverse"
    named = {word for line in code(README) for word in re.findall(r"^make ([a-z]+)\b", line)}
    assert named == set(TARGETS), "README names what a user needs"
    assert named <= rules
    for page in PAGES:
        other = {word for line in code(page.read_text()) for word in re.findall(r"\bmake ([a-z]+)\b", line)}
        assert other <= rules, f"{page.relative_to(ROOT)} names {sorted(other - rules)}"


def test_the_two_commands_come_first() -> None:
    lines = [line for line in code(section("Two commands")) if line.startswith("make ")]
    assert [line.split()[1] for line in lines[:2]] == ["demo", "test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_said_of_runviewctl_is_understood_by_it(page: Path) -> None:
    for line in code(page.read_text()):
        if not line.startswith("runviewctl ") or "..." in line:
            continue
        words = [word for word in shlex.split(line, comments=True)[1:] if word != "…"]
        try:
            parsed = _parser().parse_args(words)
        except SystemExit:  # a mention without its arguments: the command itself must exist
            with pytest.raises(SystemExit) as shown:
                _parser().parse_args([*words, "--help"])
            assert shown.value.code == 0, line
        else:
            assert parsed.command in words


def test_continuous_integration_runs_the_commands_of_the_readme() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert {"make test", "make lint", "make demo"} == set(lines)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


# The Makefile


def project_copy(folder: Path, *, installed: bool) -> Path:
    """What make looks at, and tools that print how they were called in place of the real ones."""
    folder.mkdir(parents=True)
    (folder / "loader").mkdir()
    for name in ("Makefile", "constraints.txt", "pyproject.toml", "loader/pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    for tool in ("python", "pip", "ruff", "mypy", "dagster", "runviewctl"):
        path = folder / ".venv" / "bin" / tool
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{tool} $*; $DAGSTER_HOME; $GX_ANALYTICS_ENABLED; $HF_HUB_OFFLINE; $PYTHONPATH"\n')
        path.chmod(0o755)
    if installed:
        (folder / ".venv" / ".installed").touch()
    return folder


def make(folder: Path, *words: str) -> list[str]:
    # `make test` runs this test: what it tells the makes below it would change what they print
    above = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")
    environment = {key: value for key, value in os.environ.items() if key not in above}
    done = subprocess.run(["make", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower(), done.stderr
    return done.stdout.splitlines()


@needs_make
def test_the_makefile_parses_and_installs_nothing_when_installed(tmp_path: Path) -> None:
    lines = make(project_copy(tmp_path / "p", installed=True), "-n", "--warn-undefined-variables", *TARGETS, "TORCH_INDEX=")
    assert not any("pip install" in line or "-m venv" in line for line in lines)
    assert lines[0] == ".venv/bin/runviewctl demo"
    assert lines[-1].startswith("rm -rf .venv ")


@needs_make
def test_each_command_calls_what_it_should(tmp_path: Path) -> None:
    folder = project_copy(tmp_path / "p", installed=True)
    called = [line.split(";") for line in make(folder, "-s", "demo", "test", "lint", "ui", "docs", "PORT=3456")]
    assert [words[0] for words in called] == [
        "runviewctl demo",
        "python -m pytest -q -n 2",
        "ruff check .",
        "ruff format --check .",
        "mypy pipeline resources loader/runview",
        "Dagster UI: http://127.0.0.1:3456",
        "dagster dev -w workspace.yaml -h 127.0.0.1 -p 3456",
        "runviewctl docs",
    ]
    environment = {";".join(words[1:]) for words in called if len(words) > 1}
    assert environment == {f" {folder}; false; 1; "}, "its own Dagster home, no telemetry, no model hub, nobody's PYTHONPATH"


@needs_make
def test_a_fresh_clone_installs_first_and_a_changed_pin_again(tmp_path: Path) -> None:
    folder = project_copy(tmp_path / "p", installed=False)
    plan = "\n".join(make(folder, "-n", "demo"))
    assert plan.index("pip install -q --disable-pip-version-check -c constraints.txt -e") < plan.index("runviewctl demo")
    assert "torch==" in plan
    stamp = folder / ".venv" / ".installed"
    stamp.touch()
    now = stamp.stat().st_mtime
    names = ("constraints.txt", "pyproject.toml", "loader/pyproject.toml")
    for name in names:
        os.utime(folder / name, (now - 3000, now - 3000))
    os.utime(stamp, (now - 2000, now - 2000))
    for name in names:
        assert not any("pip install" in line for line in make(folder, "-n", "demo"))
        os.utime(folder / name, (now - 1000, now - 1000))
        assert any("pip install" in line for line in make(folder, "-n", "demo")), f"a newer {name} installs again"
        os.utime(folder / name, (now - 3000, now - 3000))


@needs_make
def test_clean_leaves_what_is_tracked(tmp_path: Path) -> None:
    folder = project_copy(tmp_path / "p", installed=True)
    for name in (".lake", ".dagster_state", ".keys", "site"):
        (folder / name).mkdir()
    make(folder, "clean")
    assert sorted(path.name for path in folder.iterdir()) == ["Makefile", "constraints.txt", "loader", "pyproject.toml"]


# GNU make's own list of changes (its NEWS file), from 3.82 on.
NEWER = {
    r"!=": "4.0: shell assignment",
    r":::?=": "4.0 and 4.4: POSIX assignment",
    r"\$[({](file|guile|let|intcmp) ": "4.0 to 4.4: functions",
    r"^\.(ONESHELL|RECIPEPREFIX|SHELLFLAGS|SHELLSTATUS|EXTRA_PREREQS|NOTINTERMEDIATE|WAIT)\b": "3.82 to 4.4: special targets and variables",
    r"^\s*(undefine|private|load|-load) ": "3.82 and 4.0: directives",
    r"^\s*(override )?define \S+ *[:+?]?=": "3.82: define with an operator",
    r"&:": "4.3: grouped targets",
    r"\$\(\.SHELLSTATUS\)": "4.2",
    r"\|\|=": "not make",
}


def test_the_makefile_needs_no_make_newer_than_3_81() -> None:
    logical = [line for line in MAKEFILE.replace("\\\n", " ").splitlines() if not line.startswith(("\t", "#"))]
    recipes = [line for line in MAKEFILE.splitlines() if line.startswith("\t")]
    for pattern, what in NEWER.items():
        assert not [line for line in logical if re.search(pattern, line)], what
    assert not [line for line in recipes if re.search(r"\$[({](file|guile|let|intcmp) ", line)]
    plain = re.compile(r"[A-Z_]+ (:=|\?=) |export [A-Z_]+ :=|[a-z$().A-Z][^=]*:|$")
    assert [line for line in logical if not plain.match(line)] == [], "plain rules and variables only"


# Pins


def test_every_dependency_is_pinned_within_its_range() -> None:
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pins += [Requirement(found) for found in re.findall(r"^TORCH := (\S+)$", MAKEFILE, re.M)]
    versions = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    assert all(pin.specifier and next(iter(pin.specifier)).operator == "==" for pin in pins)
    asked = []
    for name in ("pyproject.toml", "loader/pyproject.toml"):
        project = tomllib.loads((ROOT / name).read_text())["project"]
        extras = [item for items in project.get("optional-dependencies", {}).values() for item in items]
        asked += [Requirement(text) for text in [*project["dependencies"], *extras]]
    wanted = [r for r in asked if canonicalize_name(r.name) != "runview"]
    assert wanted
    missing = sorted({r.name for r in wanted if canonicalize_name(r.name) not in versions})
    assert not missing, f"constraints.txt pins no {missing}"
    outside = [str(r) for r in wanted if versions[canonicalize_name(r.name)] not in r.specifier]
    assert not outside, f"the pins do not meet {outside}"


# Tree, links, paths


def test_the_tree_of_the_readme_is_the_tree() -> None:
    lines = re.findall(r"^    (.+)$", section("Where things are"), re.M)
    listed = [word for line in lines for word in re.match(r"((?:\S+/\s+)*)", line)[1].split()]  # type: ignore[index]
    assert len(listed) == len(set(listed)) >= 8
    assert [name for name in listed if not (ROOT / name).is_dir()] == []


@needs_git
def test_every_folder_is_in_the_tree() -> None:
    folders = {name.split("/")[0] for name in tracked() if "/" in name and not name.startswith(".")}
    missing = [name for name in sorted(folders) if f"{name}/" not in section("Where things are")]
    assert not missing


def test_paths_in_the_readme_exist() -> None:
    top = {path.name for path in ROOT.iterdir() if path.is_dir()}
    named = {word for text in code(README) for word in re.findall(r"(?<![\w./<-])([\w.-]+/[\w./-]+)", text) if word.split("/")[0] in top}
    assert "loader/examples/train_gpt.py" in named
    assert [word for word in sorted(named) if not (ROOT / word).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.is_relative_to(ROOT), f"{target} leaves the repository"
        assert found.exists(), f"{target} is not there"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", found.read_text(), re.M)
            anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in anchors, f"{target}: no such heading"


def test_every_page_is_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        reached.add(page)
        targets = {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)\s#]+)", page.read_text()) if ":" not in target}
        todo += [target for target in targets - reached if target.suffix == ".md"]
    unreached = [str(page.relative_to(ROOT)) for page in PAGES if page not in reached and page.parent != ROOT / "benchmarks"]
    assert not unreached, f"nothing links {unreached}"


# Folders of one machine, or of one user on it. Spelled so that this file does not hold them.
MACHINE = re.compile(rb"(?<![\w.*<>{}$~-])/(?:%s)(?:/|\b(?![\w-]))" % b"|".join([b"work", b"home", b"root", b"tmp", b"Users"]))


@needs_git
def test_no_file_names_a_place_on_one_machine() -> None:
    wrong = []
    for name in tracked():
        if name.startswith("pipeline/data/tokenizer/"):
            continue  # a vocabulary of real code holds such words
        for number, line in enumerate((ROOT / name).read_bytes().split(b"\n"), 1):
            if MACHINE.search(line) and not (name.startswith("tests/") and b"tmp" in MACHINE.search(line)[0]):  # type: ignore[index]
                wrong.append(f"{name}:{number}")
    assert not wrong


def test_the_machine_pattern_finds_what_it_should() -> None:
    for place in ("work/x", "home/me", "root", "tmp/a", "Users/me"):
        for around in ('"{}"', "cd {}", "({})", "={}", "file://{}", ":{}"):
            assert MACHINE.search(around.format(f"/{place}").encode()), around
    for text in ("network/work/x", "a.work/tmpfile", "<root>/views", "/workflow", "$TMP/tmp", "tests/root/x", "/rooted"):
        assert not MACHINE.search(text.encode()), text
