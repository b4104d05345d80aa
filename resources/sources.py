"""Files of sources: their TOML, their inventory, and their bytes, which must still be those of the inventory when read."""

from __future__ import annotations

import base64
import difflib
import hashlib
import io
import os
import stat
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar, cast

from pipeline.errors import RecipeError, SourceError
from pipeline.raw_evidence import rights
from pipeline.raw_evidence.inventory import Container, matches
from pipeline.raw_evidence.preview import Sized
from pipeline.raw_evidence.readers.python_environment import THIS_PROJECT, is_selected, normal_name
from pipeline.recipe import Recipe, Release, Source, parse_recipe, parse_release, parse_source
from resources.fetch.parts import Landed

T = TypeVar("T", Source, Release, Recipe)
READ_BYTES = 2**20


def load_source(name: str, directories: Sequence[Path]) -> Source:
    """The source of `<name>.toml` in the first directory that has one.

    Raises: RecipeError naming the nearest known name when none has, and naming the file when it says something wrong.
    """
    return _load(locate(name, directories, what="source"), parse_source)


def load_release(name: str, directories: Sequence[Path]) -> Release:
    """The release of `<name>.toml`, as `load_source`."""
    return _load(locate(name, directories, what="release"), parse_release)


def load_recipe(name: str, directories: Sequence[Path]) -> Recipe:
    """The recipe of `<name>.toml`, as `load_source`."""
    return _load(locate(name, directories, what="recipe"), parse_recipe)


def locate(name: str, directories: Sequence[Path], *, what: str) -> Path:
    """The file `<name>.toml` in the first directory that has one, so that a project's own file goes before a packaged one.

    Args: what, for the message: source, release or recipe.
    Raises: RecipeError naming the nearest known name.
    """
    known = sorted({path.stem for directory in directories for path in directory.glob("*.toml")})
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {known}"
        raise RecipeError(f"{what} {name!r}: no {name}.toml in {[d.name for d in directories]}; {hint}")
    return next(place for place in (directory / f"{name}.toml" for directory in directories) if place.exists())


def _load(path: Path, parse: Callable[..., T]) -> T:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path.name}: cannot be read: {_cause(error)}") from None
    value = parse(text, where=path.name)
    if value.name != path.stem:
        raise RecipeError(f"{path.name}: name is {value.name!r}, expected {path.stem!r} as in the file's name")
    return value


def take_inventory(
    source: Source, base_dir: Path, *, environment: Path | None = None, landed: Mapping[str, Landed] | None = None
) -> tuple[Container, ...]:
    """Every container of a source, by path, with size and sha256.

    Patterns of `include` and `exclude` follow `pipeline.raw_evidence.inventory.matches`. A link inside the location is read as
    the file it names; a link to a folder inside is not followed, since its files are listed at their own place.

    Args: base_dir, the folder of the source file; environment, a site-packages folder (default: the running interpreter's); landed, what
        a fetch recorded of each file of the location: its revision and time go on the container.
    Raises: SourceError when the location is missing or empty, an include pattern selects nothing, a file cannot be read or is
        no regular file, a link leaves the location, an installed file is not what its package's RECORD lists, or a landed one not what
        the landing lists.
    """
    root, paths = _selected(source, base_dir, environment)
    licences = _licences(source, root)
    if not paths:
        raise SourceError(f"source {source.name}: empty, no file is selected; check location, include, exclude and packages")
    containers = []
    for path, expected in sorted(paths.items()):
        size, sha256 = _measure(source, root, path)
        if expected and base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode() != expected:
            raise SourceError(f"source {source.name}: installed file {path} is not what RECORD lists; reinstall its package or exclude it")
        containers.append(Container(path, size, sha256, licence=licences.get(path)))
    return tuple(containers) if landed is None else tuple(_as_landed(source, containers, landed))


def _as_landed(source: Source, containers: Sequence[Container], landed: Mapping[str, Landed]) -> Iterator[Container]:
    """The containers with revision and time of fetching. Raises SourceError unless they are the landed files the source selects."""
    again = "remove the landing's folder to fetch again"
    missing = {path for path in landed if _wanted(path, source)} - {container.path for container in containers}
    if missing:
        raise SourceError(f"source {source.name}: {len(missing)} landed files are gone, the first {min(missing)}; {again}")
    for container in containers:
        listed = landed.get(container.path)
        if listed is None:
            raise SourceError(f"source {source.name}: {container.path} lies in the landing and is not listed there; remove it")
        if (listed.sha256, listed.size_bytes) != (container.sha256, container.size_bytes):
            raise SourceError(
                f"source {source.name}: landed file {container.path} has sha256 {container.sha256}, expected {listed.sha256}; {again}"
            )
        yield replace(container, revision=listed.revision, fetched_at=listed.fetched_at)


def open_container(source: Source, base_dir: Path, container: Container, *, environment: Path | None = None) -> BinaryIO:
    """The container's bytes for reading. Closing it raises SourceError when they were not those of the inventory."""
    return _open(_root(source, base_dir, environment), source.name, container)


def open_all(
    source: Source, base_dir: Path, containers: Sequence[Container], *, environment: Path | None = None
) -> Iterator[tuple[Container, Callable[[], BinaryIO]]]:
    """Pairs for `capture`: each container and the function that opens it."""
    root = _root(source, base_dir, environment)
    for container in containers:
        yield container, partial(_open, root, source.name, container)


def look(source: Source, base_dir: Path, *, environment: Path | None = None) -> tuple[Sized, ...]:
    """The containers of a source by path, with their size and not yet read: for a plan or a dry run. Raises SourceError."""
    root, paths = _selected(source, base_dir, environment)
    out = []
    for path in sorted(paths):
        try:
            size = (root / path).stat().st_size
        except OSError as error:
            raise SourceError(f"source {source.name}: file {path} cannot be read: {_cause(error)}") from None
        out.append(Sized(path, size, partial(_open_unchecked, root, source.name, path)))
    return tuple(out)


def _open_unchecked(root: Path, source: str, path: str) -> BinaryIO:
    try:
        return open(os.path.join(root, path), "rb")
    except OSError as error:
        raise SourceError(f"source {source}: file {path} cannot be read: {_cause(error)}") from None


def _licences(source: Source, root: Path) -> dict[str, str]:
    """Licence per path, from each installed package's metadata; empty for readers other than `python_environment`."""
    if source.reader != "python_environment":
        return {}
    out: dict[str, str] = {}
    for package in _packages(source, root):
        fields = package.metadata
        expression, stated = (next(iter(fields.get_all(name) or []), None) for name in ("License-Expression", "License"))
        licence = rights.of_package(expression, stated=stated, classifiers=fields.get_all("Classifier") or [])
        out.update(dict.fromkeys(_recorded(package, source), licence))
    return out


def _selected(source: Source, base_dir: Path, environment: Path | None) -> tuple[Path, dict[str, str]]:
    """Root, and per selected path the digest that RECORD lists (empty for other readers)."""
    root = _root(source, base_dir, environment)
    if source.reader == "python_environment":
        paths: dict[str, str] = {}
        for package in _packages(source, root):
            paths.update(_recorded(package, source))
    elif not root.exists():
        raise SourceError(f"source {source.name}: location {source.location!r} does not exist beside the source file")
    else:
        location = base_dir / source.location
        names = [location.name] if location.is_file() else _walk(source, root)
        paths = dict.fromkeys(names, "")
    unused = [pattern for pattern in source.include if not any(matches(path, pattern) for path in paths)]
    if unused and paths:
        raise SourceError(f"source {source.name}: include pattern {unused[0]!r} selects none of {len(paths)} files")
    chosen = {path: expected for path, expected in paths.items() if _wanted(path, source)}
    for path in chosen:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise SourceError(f"source {source.name}: file name {path!a} is not UTF-8; rename it or exclude it") from None
    return root, chosen


def _wanted(path: str, source: Source) -> bool:
    return any(matches(path, pattern) for pattern in source.include) and not _excluded(path, source)


def _excluded(path: str, source: Source) -> bool:
    """Also true for a folder all of whose files are excluded."""
    return any(matches(path, pattern) or matches(f"{path}/x", pattern) for pattern in source.exclude)


def _root(source: Source, base_dir: Path, environment: Path | None) -> Path:
    if source.reader == "python_environment":
        return _environment(environment)
    location = base_dir / source.location
    return location.parent if location.is_file() else location


def _environment(environment: Path | None) -> Path:
    return environment or _site_packages()


@lru_cache(maxsize=1)
def _site_packages() -> Path:
    return Path(sysconfig.get_paths()["purelib"])  # 0.3 ms a call, once per file otherwise


def _walk(source: Source, root: Path) -> list[str]:
    """All files below root, hidden ones too, as relative POSIX paths."""

    def fail(error: OSError) -> None:
        raise SourceError(f"source {source.name}: folder {_relative(error.filename, root)} cannot be listed: {_cause(error)}") from None

    real = root.resolve()
    out = []
    for folder, folders, files in os.walk(root, onerror=fail):
        for name in [*files, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]:
            place = os.path.join(folder, name)
            path = _relative(place, root)
            if os.path.islink(place):
                target = Path(place).resolve()
                if target.exists() and target.is_relative_to(real):
                    if target.is_dir():
                        continue  # its files are listed at their own place
                elif _excluded(path, source) or not (target.is_dir() or _wanted(path, source)):
                    continue
                else:
                    what = "leaves the location" if target.exists() else "leads nowhere"
                    raise SourceError(f"source {source.name}: link {path} {what}; copy what it names, or exclude it")
            out.append(path)
    return out


def _relative(place: str, root: Path) -> str:
    return PurePosixPath(os.path.relpath(place, root).replace(os.sep, "/")).as_posix()


def _packages(source: Source, site_packages: Path) -> list[metadata.Distribution]:
    """Installed packages the source names, without this project. Raises SourceError naming the nearest name of a missing one."""
    installed = {
        normal_name(found.metadata["Name"]): found
        for found in metadata.distributions(path=[str(site_packages)])
        if found.metadata["Name"] and normal_name(found.metadata["Name"]) not in THIS_PROJECT
    }
    wanted = sorted(installed) if "*" in source.packages else sorted({normal_name(name) for name in source.packages} - set(THIS_PROJECT))
    for name in wanted:
        if name not in installed:
            near = difflib.get_close_matches(name, installed, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"{len(installed)} others are"
            raise SourceError(f"source {source.name}: package {name!r} is not installed; {hint}")
    return [installed[name] for name in wanted]


def _recorded(package: metadata.Distribution, source: Source) -> dict[str, str]:
    """Path -> sha256 as RECORD writes it, of the files the source selects; only those that RECORD lists with a sha256."""
    out = {}
    for file in package.files or ():
        path = file.as_posix()
        if file.hash is not None and file.hash.mode == "sha256" and is_selected(path, source.select):
            out[path] = file.hash.value
    return out


def _measure(source: Source, root: Path, path: str) -> tuple[int, str]:
    hasher, size = hashlib.sha256(), 0
    try:
        place = root / path
        if not stat.S_ISREG(place.stat().st_mode):
            raise SourceError(f"source {source.name}: {path} is no regular file; exclude it")
        with place.open("rb") as stream:
            while data := stream.read(READ_BYTES):
                hasher.update(data)
                size += len(data)
    except OSError as error:
        raise SourceError(f"source {source.name}: file {path} cannot be read: {_cause(error)}") from None
    return size, hasher.hexdigest()


def _cause(error: Exception) -> str:
    """Kind of an operating system error without the absolute path that its message holds."""
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else type(error).__name__


def _open(root: Path, source: str, container: Container) -> BinaryIO:
    try:
        return cast(BinaryIO, _Checked(open(os.path.join(root, container.path), "rb"), source, container))
    except OSError as error:
        raise SourceError(f"source {source}: container {container.path} cannot be read: {_cause(error)}") from None


class _Checked(io.BufferedIOBase):
    """A file that hashes what is read in order; on closing, digest and size have to be those of the inventory.

    Readers that jump (Parquet) or stop early make the file be hashed once more from the start when it is closed.
    """

    def __init__(self, file: io.BufferedReader, source: str, container: Container) -> None:
        self._file, self._source, self._container = file, source, container
        self._hasher = hashlib.sha256()
        self._in_order = 0  # bytes hashed so far, all from the start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        start = self._file.tell()
        data = self._call(self._file.read, -1 if size is None else size)
        if start == self._in_order:
            self._hasher.update(data)
            self._in_order += len(data)
        return cast(bytes, data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._file.seek(self._in_order)
            while data := self._call(self._file.read, READ_BYTES):
                self._hasher.update(data)
                self._in_order += len(data)
        finally:
            self._file.close()
            super().close()
        expected = self._container
        if self._in_order != expected.size_bytes or self._hasher.hexdigest() != expected.sha256:
            raise SourceError(
                f"source {self._source}: container {expected.path} changed while it was read: expected {expected.size_bytes} bytes with "
                f"sha256 {expected.sha256}, found {self._in_order} with {self._hasher.hexdigest()}; take the inventory again"
            )

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except OSError as error:
            raise SourceError(f"source {self._source}: container {self._container.path} cannot be read: {_cause(error)}") from None
