"""Which component of the mixture each kept document belongs to: exactly one, or the recipe is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from pipeline.errors import ContractError, MixtureError
from pipeline.recipe import Component

FIELDS = ("source", "language", "kind", "domain")
MAX_NAMED = 20  # combinations named in one message


def assign(documents: pa.Table, components: Sequence[Component]) -> pa.Array:
    """The name of each document's component.

    Args: documents with `source`, `language`, `kind` and `domain`, no nulls; they are the kept ones.
    Returns: string array, one per row, in row order.
    Raises: MixtureError, when a combination of the four fields is selected by no component or by several; it names the
        components, combinations and counts.
    """
    frame = _frame(documents)
    chosen, unmatched, ambiguous = [], [], []
    for (source, language, kind, domain), n_docs, names in combinations(documents, components):
        place = f"(source={source}, language={language}, kind={kind}, domain={domain}): {n_docs} documents"
        if not names:
            unmatched.append(place)
        elif len(names) > 1:
            ambiguous.append(f"{place} in {names}")
        else:
            chosen.append((source, language, kind, domain, names[0]))
    if unmatched or ambiguous:
        raise MixtureError(
            f"every kept document must be in exactly one component of {[c.name for c in components]}. "
            f"In none: {_listed(unmatched)}. In several: {_listed(ambiguous)}. Change the predicates under [[components]]"
        )
    table = pl.DataFrame(chosen, schema=dict.fromkeys((*FIELDS, "component"), pl.String), orient="row")
    return frame.join(table, on=list(FIELDS), how="left", maintain_order="left")["component"].to_arrow().cast(pa.string())


def combinations(documents: pa.Table, components: Sequence[Component]) -> list[tuple[tuple[str, str, str, str], int, list[str]]]:
    """Every combination of `FIELDS` the documents have, how many have it, and the components that select it: one, or the recipe is wrong.

    A corpus has few combinations, so predicates are asked once per combination and not once per document.
    """
    groups = _frame(documents).group_by(list(FIELDS)).len().sort(list(FIELDS)).rows()
    return [((s, lang, k, d), n, [c.name for c in components if _selects(c, s, lang, k, d)]) for s, lang, k, d, n in groups]


def _frame(documents: pa.Table) -> pl.DataFrame:
    """The fields that decide. Raises ContractError for nulls."""
    frame = pl.from_arrow(documents.select(list(FIELDS)))
    assert isinstance(frame, pl.DataFrame)
    nulls = {name: n for name, n in zip(FIELDS, frame.null_count().row(0), strict=True) if n} if frame.height else {}
    if nulls:
        raise ContractError(f"documents: {nulls} nulls in the fields that decide the component, expected none")
    return frame


def _selects(component: Component, source: str, language: str, kind: str, domain: str) -> bool:
    lists = (component.sources, component.languages, component.kinds, component.domains)
    return all(not wanted or value in wanted for wanted, value in zip(lists, (source, language, kind, domain), strict=True))


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - MAX_NAMED} more" if len(items) > MAX_NAMED else ""
    return "; ".join(items[:MAX_NAMED]) + more if items else "nothing"
