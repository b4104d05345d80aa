"""The walk of docs/own-data.md, line by line: a newcomer's project from `source add` to a published view of real files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runview import Loader, RunView

ROOT = Path(__file__).parents[2]
CORPUS = Path(os.environ.get("RUNVIEW_CORPUS", ROOT.parent / "shared" / "corpus"))


@pytest.mark.slow
@pytest.mark.skipif(not (CORPUS / "manifest.jsonl").exists(), reason=f"no corpus at {CORPUS}; set RUNVIEW_CORPUS")
def test_the_walk(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "own-data.md").read_text()
    walk = text[text.index("## 4. Run, look, approve: a walk") :]
    scripts = re.findall(r"```sh\n(.*?)```", walk, re.DOTALL)
    recipe, release = re.findall(r"```toml\n(.*?)```", walk, re.DOTALL)
    assert len(scripts) == 2
    default = (ROOT / "pipeline" / "recipes" / "default.toml").read_text()
    head = default[: default.index("# Every kept document is in exactly one component")].replace('name = "default"', 'name = "corpus"', 1)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("RUNVIEW_", "DAGSTER_"))},
        "RUNVIEW": str(ROOT),
        "CORPUS": str(CORPUS),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "loader")]),
        "PYTHON": sys.executable,
    }

    def shell(script: str) -> str:
        wrapped = f'set -e\nrunviewctl() {{ "$PYTHON" -m assets.cli "$@"; }}\n{script}'
        done = subprocess.run(["bash", "-c", wrapped], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    shell(scripts[0])
    assert len(list((tmp_path / "sources").glob("*.toml"))) == 6
    (tmp_path / "recipes" / "corpus.toml").write_text(head + recipe)
    (tmp_path / "releases" / "first.toml").write_text(release)
    said = shell(scripts[1])
    assert "in=41638 empty=0 parsed=41638" in said
    (view_path,) = [p for p in (tmp_path / ".lake" / "files" / "views").glob("*.json") if "." not in p.stem]
    view = RunView.open(view_path, allowed_signers=tmp_path / ".keys" / "allowed_signers")
    with Loader(view, micro_batch=8, threads=0) as loader:
        batch = next(iter(loader))
    assert batch.input_ids.shape == (8, 512)
