"""What a backfill would cost."""

import pytest

from pipeline.backfill import DEFAULT_CPU_SECONDS_PER_MB, DEFAULT_DISK_RATIO, Measured, estimate, rates


def test_without_an_earlier_snapshot_the_defaults_are_stated() -> None:
    rate = rates([])
    assert (rate.cpu_seconds_per_mb, rate.disk_ratio) == (DEFAULT_CPU_SECONDS_PER_MB, DEFAULT_DISK_RATIO)
    assert (rate.cpu_measured_on, rate.disk_measured_on) == (0, 0)


def test_large_snapshots_count_more_and_an_unmeasured_time_is_left_out() -> None:
    rate = rates([Measured(9_000_000, 9.0, 4_500_000), Measured(1_000_000, 6.0, 500_000), Measured(1_000_000, None, 1_100_000)])
    assert rate.cpu_seconds_per_mb == pytest.approx(1.5)
    assert rate.disk_ratio == pytest.approx(6.1 / 11)
    assert (rate.cpu_measured_on, rate.disk_measured_on) == (2, 3)


def test_empty_snapshots_measure_nothing() -> None:
    assert rates([Measured(0, 1.0, 100)]) == rates([])


def test_estimate_is_in_hours_and_bytes() -> None:
    hours, disk = estimate(3_600_000_000, rates([Measured(1_000_000, 2.0, 250_000)]))
    assert hours == pytest.approx(2.0)
    assert disk == 900_000_000
