"""Reading the safetensors container without copying: named numpy views over a buffer.

Layout: u64 little-endian header length N, N bytes of JSON, then the tensors. The header is checked in full (dtype,
shape, extent, no hole, no overlap, nothing after the end), since a view over a wrong extent would be silent noise.
Reading is strict where the format allows variation: little-endian, C order, one metadata key named `runview`.
"""

import json
import math
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from runview.errors import FormatError, MissingFileError

Buffer = bytes | mmap.mmap
Check = Callable[[int, int], None]
Source = str | os.PathLike[str] | Buffer

DTYPES = {"U8": "|u1", "U16": "<u2", "U32": "<u4", "I32": "<i4", "I64": "<i8"}
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors reference implementation
METADATA_KEY = "runview"


@dataclass(frozen=True)
class TensorFile:
    """Views by tensor name, the byte range of each in the file, and the text of the metadata key."""

    name: str
    size_bytes: int
    metadata: str
    arrays: dict[str, np.ndarray[Any, Any]]
    extents: dict[str, tuple[int, int]]

    def array(self, tensor: str, dtypes: tuple[str, ...], shape: tuple[int | None, ...]) -> np.ndarray[Any, Any]:
        """The view of one tensor; FormatError unless its dtype is one of `dtypes` and its shape matches (None: any)."""
        if tensor not in self.arrays:
            raise FormatError(f"{self.name}: tensor {tensor!r} expected, found only {sorted(self.arrays)}")
        found = self.arrays[tensor]
        if found.dtype not in [np.dtype(DTYPES[d]) for d in dtypes]:
            raise FormatError(f"{self.name}: tensor {tensor!r} must be {' or '.join(dtypes)}, found {found.dtype}")
        if found.ndim != len(shape) or any(w is not None and w != g for w, g in zip(shape, found.shape, strict=True)):
            raise FormatError(f"{self.name}: tensor {tensor!r} must have shape {shape}, found {found.shape}")
        return found


def map_file(source: Source) -> tuple[Buffer, str]:
    """A read-only buffer and a name for messages; a path is memory-mapped, bytes are used as they are."""
    if isinstance(source, (bytes, mmap.mmap)):
        return source, "<bytes>"
    name = os.fspath(source)
    try:
        with open(name, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise FormatError(f"{name}: is empty, a safetensors file expected; copy the file again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), name
    except OSError as error:
        raise MissingFileError(f"{name}: cannot be read ({error.strerror}); check that the lake is complete and mounted") from error


def open_tensors(source: Source, *, check: Check | None = None, name: str | None = None) -> TensorFile:
    """Parse the header. `check(begin, end)`, when given, is called for the header's bytes before they are believed."""
    buffer, default_name = map_file(source)
    label = name or default_name
    total = len(buffer)
    if total < 8:
        raise FormatError(f"{label}: {total} bytes, at least 8 expected")
    if check:
        check(0, 8)
    (header_bytes,) = struct.unpack("<Q", buffer[:8])
    if header_bytes > min(MAX_HEADER_BYTES, total - 8):
        raise FormatError(f"{label}: header of {header_bytes} bytes does not fit in a file of {total} bytes")
    if check:
        check(0, 8 + header_bytes)
    try:
        header = json.loads(bytes(buffer[8 : 8 + header_bytes]).decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{label}: header is not JSON ({type(error).__name__})") from error
    if not isinstance(header, dict):
        raise FormatError(f"{label}: header is not a JSON object")
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or list(metadata) != [METADATA_KEY] or not isinstance(metadata[METADATA_KEY], str):
        raise FormatError(
            f"{label}: metadata must be exactly one key {METADATA_KEY!r}, found "
            f"{sorted(metadata) if isinstance(metadata, dict) else type(metadata).__name__}"
        )
    data_start = 8 + header_bytes
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    extents: dict[str, tuple[int, int]] = {}
    for tensor, entry in header.items():
        dtype, shape, begin, end = _entry(label, tensor, entry)
        if data_start + end > total:
            raise FormatError(
                f"{label}: tensor {tensor!r} ends at byte {data_start + end}, the file has {total}; it is truncated, copy it again"
            )
        count = math.prod(shape)
        arrays[tensor] = np.frombuffer(buffer, dtype, count, data_start + begin if count else 0).reshape(shape)
        extents[tensor] = (data_start + begin, data_start + end)
    position = data_start
    for tensor, (begin, end) in sorted(extents.items(), key=lambda item: item[1]):
        if begin != position:
            raise FormatError(f"{label}: tensor {tensor!r} starts at byte {begin}, {position} expected (hole or overlap)")
        position = end
    if position != total:
        raise FormatError(f"{label}: {total - position} bytes after the last tensor")
    return TensorFile(label, total, metadata[METADATA_KEY], arrays, extents)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _entry(label: str, tensor: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{label}: tensor {tensor!r} needs dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if code not in DTYPES:
        raise FormatError(f"{label}: tensor {tensor!r} has dtype {code!r}, one of {sorted(DTYPES)} expected")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise FormatError(f"{label}: tensor {tensor!r} has a shape or extent that is not non-negative integers")
    if offsets[1] - offsets[0] != math.prod(shape) * np.dtype(DTYPES[code]).itemsize:
        raise FormatError(f"{label}: tensor {tensor!r} of shape {shape} and {code} does not fill bytes {offsets}")
    return DTYPES[code], tuple(shape), offsets[0], offsets[1]


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
