"""What a backfill would cost, from what earlier snapshots of the source did cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# They stand in for a source that was never collected; its first snapshot replaces them. Measured on plain text, evidence and documents
# together: 32 MB of source code took 0.08 CPU seconds a MB and 0.47 bytes of lake a byte, 5 MB of prose 0.22 and 0.48. Compressed
# files take as many times more as they unpack to.
DEFAULT_CPU_SECONDS_PER_MB = 0.25
DEFAULT_DISK_RATIO = 0.5
MB = 1_000_000


@dataclass(frozen=True)
class Rates:
    """Cost per byte of input, and on how many earlier snapshots each was measured; 0: it is the stated default."""

    cpu_seconds_per_mb: float
    disk_ratio: float
    cpu_measured_on: int
    disk_measured_on: int


@dataclass(frozen=True)
class Measured:
    """What one earlier snapshot took: bytes of its inventory, CPU seconds (None when they were not recorded), bytes in the lake."""

    size_bytes: int
    cpu_seconds: float | None
    disk_bytes: int


def rates(earlier: Iterable[Measured]) -> Rates:
    """Rates of a source, summed over its earlier snapshots, so that large ones count more."""
    held = [one for one in earlier if one.size_bytes > 0]
    timed = [one for one in held if one.cpu_seconds is not None]
    cpu, disk = DEFAULT_CPU_SECONDS_PER_MB, DEFAULT_DISK_RATIO
    if timed:
        cpu = sum(one.cpu_seconds or 0.0 for one in timed) / (sum(one.size_bytes for one in timed) / MB)
    if held:
        disk = sum(one.disk_bytes for one in held) / sum(one.size_bytes for one in held)
    return Rates(cpu, disk, len(timed), len(held))


def estimate(size_bytes: int, rate: Rates) -> tuple[float, int]:
    """CPU hours and bytes of disk for so many bytes of input."""
    return size_bytes / MB * rate.cpu_seconds_per_mb / 3600, round(size_bytes * rate.disk_ratio)
