"""What a stage is, and what its version digests (DESIGN: identity). No stage reads the clock or the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.ids import canonical_json, digest


@dataclass(frozen=True)
class StageVersion:
    """Everything that can change a stage's rows; `version` is its digest.

    Attributes:
        stage, state: the stage's name and the state (one of the four) its tables lie under.
        partition: partition key, for example {"source": "web", "snapshot": "2026-11-01"}.
        code_version: declared by the stage; a golden fixture fails when output changes and this did not.
        recipe_part: the part of the recipe the stage reads, as plain JSON (decimals as strings).
        parents: input name -> version of that input (erasures applied to it included).
        models: name -> digest of models and word lists.
        packages: behaviour packages -> version (whatever can change a row).
    """

    stage: str
    state: str
    partition: Mapping[str, str]
    code_version: str
    recipe_part: Mapping[str, Any] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """sha256 hex of the identity."""
        return digest("stage", self.identity())

    def identity(self) -> dict[str, Any]:
        """Plain JSON of all that enters the version; kept on the snapshot row for audits."""
        return {
            "stage": self.stage,
            "state": self.state,
            "partition": dict(self.partition),
            "code_version": self.code_version,
            "recipe_part": dict(self.recipe_part),
            "parents": dict(self.parents),
            "models": dict(self.models),
            "packages": dict(self.packages),
        }

    def identity_json(self) -> str:
        """Canonical JSON text of `identity()`."""
        return canonical_json(self.identity()).decode()
