"""Settings every test shares: no test is judged by the clock, and property tests find the same examples on every machine."""

import os

from hypothesis import settings

os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")

settings.register_profile("runview", deadline=None, derandomize=True)
settings.load_profile("runview")
