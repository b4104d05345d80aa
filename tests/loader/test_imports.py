"""What importing runview costs and pulls in."""

import ast
import subprocess
import sys
from pathlib import Path

import runview

PACKAGE = Path(runview.__file__).parent
HEAVY = ("torch", "dagster", "polars", "pyarrow", "deltalake", "pandas", "cryptography", "pipeline", "assets", "resources")


def test_import_of_the_core_stays_small() -> None:
    modules = sorted(f"runview.{path.stem}" for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "torch"))
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import {', '.join(modules)}; print(*sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-B", "-c", code, str(PACKAGE.parent)], check=True, capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in out.stdout.split()}
    assert {"runview", "numpy", "safetensors"} <= loaded
    assert not loaded & set(HEAVY)


def test_each_module_imports_only_what_the_core_depends_on() -> None:
    allowed = {"numpy", "safetensors", "runview", *sys.stdlib_module_names}
    extras = {"torch.py": {"torch"}, "approval.py": {"cryptography"}}
    for path in PACKAGE.glob("*.py"):
        names = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names.add((node.module or "").split(".")[0])
        assert names <= allowed | extras.get(path.name, set()), path.name
