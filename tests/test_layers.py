"""Imports point only along assets -> resources -> pipeline -> runview, and states of the pipeline never import each other."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "assets": {"assets", "resources", "pipeline", "runview"},
    "resources": {"resources", "pipeline", "runview"},
    "pipeline": {"pipeline", "runview"},
    "loader/runview": {"runview"},
}
LAYERS = {"assets", "resources", "pipeline", "runview"}
SHARED = {"schemas", "ids", "errors", "recipe", "ledger", "stages"}
STATES = {"raw_evidence", "cleaned_docs", "tokenized_shards", "run_view"}
FORBIDDEN = {
    "pipeline": {"dagster", "deltalake", "great_expectations", "requests", "socket", "random", "time", "subprocess", "torch"},
    "loader/runview": {"dagster", "deltalake", "polars", "pyarrow", "great_expectations", "pandas"},
}
OWNERS: dict[str, str | tuple[str, ...]] = {
    "obstore": ("resources/objects.py", "resources/fetch/s3.py"),
    "deltalake": "resources/lake",
    "great_expectations": "resources/expectations.py",
    "transformers": "resources/tokenizers.py",
    "huggingface_hub": "resources/fetch/hub.py",
    "requests": "resources/fetch/https.py",
    "protego": "resources/fetch/robots.py",
}


def imported(path: Path) -> set[str]:
    """Dotted names a module imports, at any depth of its source."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def modules(layer: str) -> list[Path]:
    return sorted((ROOT / layer).rglob("*.py"))


@pytest.mark.parametrize("layer", ALLOWED)
def test_arrows(layer: str) -> None:
    assert modules(layer), f"no modules in {layer}"
    for path in modules(layer):
        tops = {name.split(".")[0] for name in imported(path)}
        wrong = (tops & LAYERS) - ALLOWED[layer]
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"
        banned = tops & FORBIDDEN.get(layer, set())
        assert not banned, f"{path.relative_to(ROOT)} imports {sorted(banned)}"


def test_states_meet_only_in_tables() -> None:
    for state in STATES:
        for path in modules(f"pipeline/{state}"):
            for name in imported(path):
                parts = name.split(".")
                if parts[0] == "pipeline" and len(parts) > 1:
                    assert parts[1] in SHARED | {state}, f"{path.relative_to(ROOT)} imports {name}"


def test_only_one_place_imports_each_outside_library() -> None:
    for library, owner in OWNERS.items():
        for layer in ("assets", "resources", "pipeline"):
            for path in modules(layer):
                if library in {name.split(".")[0] for name in imported(path)}:
                    assert str(path.relative_to(ROOT)).startswith(owner), f"{path.relative_to(ROOT)} imports {library}"
