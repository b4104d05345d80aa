"""Great Expectations: holds the row rules as expectation suites, judges one-row profiles, builds Data Docs.

Great Expectations is imported lazily (2 to 6 s and 250 MB) and only here. A raised expectation is an error, whatever severity
it declares; results are matched by name, since they do not come back in suite order.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.contracts import RowRule, Verdict, judge
from pipeline.errors import ContractError

os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
logger = logging.getLogger(__name__)


def _expectation(gx: Any, rule: RowRule) -> Any:
    return gx.expectations.ExpectColumnValuesToBeBetween(
        column=rule.name,
        min_value=rule.minimum,
        max_value=rule.maximum,
        severity="critical" if rule.severity == "error" else "warning",
        meta={"check": rule.name, "evaluated": rule.evaluated, "notes": rule.why},
    )


def _context(project_dir: Path | None) -> Any:
    import great_expectations as gx
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults

    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    if project_dir:
        context: Any = gx.get_context(mode="file", project_root_dir=project_dir)
    else:
        # the default in-memory context leaves a temporary docs folder behind for every validation
        defaults = InMemoryStoreBackendDefaults(init_temp_docs_sites=False)
        context = gx.get_context(mode="ephemeral", project_config=DataContextConfig(store_backend_defaults=defaults))
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    return context


def validate(rules: Sequence[RowRule], profile: Mapping[str, float]) -> list[Verdict]:
    """One verdict per rule, in the order of the rules.

    Raises ContractError when the profile lacks a column a rule reads, or a verdict is missing from the result.
    """
    import great_expectations as gx
    import pandas as pd  # type: ignore[import-untyped]

    judged = judge(rules, profile)
    frame = pd.DataFrame({item["rule"].name: [item["observed"]] for item in judged})
    context = _context(None)
    batch = (
        context.data_sources.add_pandas("profile")
        .add_dataframe_asset(name="profile")
        .add_batch_definition_whole_dataframe("profile")
        .get_batch(batch_parameters={"dataframe": frame})
    )
    suite = gx.ExpectationSuite(name="rules", expectations=[_expectation(gx, rule) for rule in rules])
    results = {r.expectation_config.meta["check"]: r for r in batch.validate(suite, result_format="SUMMARY").results}
    verdicts = []
    for item in judged:
        rule: RowRule = item["rule"]
        if rule.name not in results:
            raise ContractError(f"check {rule.name}: no result came back from the suite; nothing was judged")
        result = results[rule.name]
        info = result.exception_info or {}
        raised = [info] if "raised_exception" in info else list(info.values())
        kind = "expectation error" if any(entry.get("raised_exception") for entry in raised) else ""
        if not math.isfinite(item["observed"]):
            kind = "not a finite number"  # Great Expectations leaves NaN out, so that nothing is judged and the check passes
        verdicts.append(
            Verdict(
                check=rule.name,
                passed=bool(result.success) and not kind,
                severity="error" if kind else rule.severity,
                n_evaluated=item["n_evaluated"],
                observed=item["observed"],
                raised=kind,
            )
        )
    return verdicts


def build_data_docs(folder: Path, profiles: Mapping[str, tuple[Sequence[RowRule], Mapping[str, float]]]) -> Path:
    """Data Docs for `profiles` (title -> rules and profile); returns the index page below `folder`."""
    import great_expectations as gx
    import pandas as pd  # type: ignore[import-untyped]
    from great_expectations.checkpoint.actions import UpdateDataDocsAction

    folder.mkdir(parents=True, exist_ok=True)
    context = _context(folder)
    names = {source.name for source in context.data_sources.all().values()} if hasattr(context.data_sources, "all") else set()
    source = context.data_sources.get("profiles") if "profiles" in names else context.data_sources.add_pandas("profiles")
    for title, (rules, profile) in profiles.items():
        judged = judge(rules, profile)
        frame = pd.DataFrame({item["rule"].name: [item["observed"]] for item in judged})
        assets = {asset.name for asset in source.assets}
        asset = source.get_asset(title) if title in assets else source.add_dataframe_asset(name=title)
        definitions = {d.name for d in asset.batch_definitions}
        batch = asset.get_batch_definition("whole") if "whole" in definitions else asset.add_batch_definition_whole_dataframe("whole")
        suite = context.suites.add_or_update(gx.ExpectationSuite(name=title, expectations=[_expectation(gx, rule) for rule in rules]))
        validation = context.validation_definitions.add_or_update(gx.ValidationDefinition(name=title, data=batch, suite=suite))
        checkpoint = context.checkpoints.add_or_update(
            gx.Checkpoint(name=title, validation_definitions=[validation], actions=[UpdateDataDocsAction(name="docs")])
        )
        checkpoint.run(batch_parameters={"dataframe": frame})
    context.build_data_docs()
    pages = sorted(folder.rglob("local_site/index.html"))
    if not pages:
        raise ContractError(f"Data Docs were built but no index.html lies below {folder}")
    return pages[0]
