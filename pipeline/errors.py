"""The one error family of the pipeline.

A bad document is a decision and an unreadable one a reject; an exception is a broken promise. Messages say what was
expected, what was found, which id, and what to do next. They carry ids and counts only, never document text.
"""

from __future__ import annotations


class PipelineError(Exception):
    """Base of every error the pipeline raises on purpose."""


class RecipeError(PipelineError):
    """A recipe, source or release file says something we cannot carry out."""


class ContractError(PipelineError):
    """A table or array breaks its declared schema, key or invariant."""


class LedgerError(PipelineError):
    """Counts that must add up do not, or a count is missing."""


class SourceError(PipelineError):
    """A source cannot be listed or read as declared (empty, changed while read, incomplete files)."""


class LakeError(PipelineError):
    """The store of record refused or contradicts itself."""


class GateError(PipelineError):
    """A consumer was asked to read a version whose gate is red, missing or judged nothing."""


class TokenizerError(PipelineError):
    """A tokenizer is missing, incomplete or produces ids it should not."""


class MixtureError(PipelineError):
    """A component or stage cannot be built as declared (no packs, cap passed, overflow)."""


class ViewError(PipelineError):
    """A run view's manifest is inconsistent with what it describes."""


class DeliveryError(PipelineError):
    """An alert did not reach a receiver. `down`: nobody answered, so others need not be tried now either."""

    def __init__(self, message: str, *, down: bool) -> None:
        super().__init__(message)
        self.down = down


class ApprovalError(PipelineError):
    """A publication has no valid approval for exactly these bytes."""
