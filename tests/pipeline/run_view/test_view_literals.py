"""The ids of the fixture's files and of its view, written down: equal on every machine and in every process.

When a change of output is intended, raise the stage's CODE_VERSION and write the new ids here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.run_view.view_fixture import identities

ROOT = Path(__file__).parents[3]
EXPECTED = {
    "tokenizer_id": "03c522a7e00316b045558c9b74fd9f26a979094b6945df378c9d5be7479f3312",
    "shards": {
        "code/train": [
            "ca7b6200d44c534d3057a9d097960688c7210b52bb9605772372ce21703a8dab",
            "4f7f66509757bca067dfd6088facfeda352bb9df2d8e4083345cd4c0c885e228",
        ],
        "code/validation": ["5f447d4fc0d76bb9fa69e5c24a2c0e3233d23302590f7404e5794fd45b1a3799"],
        "prose-en/train": [
            "157a5308791daca90e6fa89c597359d75092afe451d6b37ef8bf9c7f38b40c46",
            "3ce51b099487ee732a46ba9308b2e3295900e8e70a3ad48b2f26143587a010ac",
        ],
        "prose-en/validation": ["8ebaadc9d0a51718e6d0b35a6b75abf0ab14333c594409da8f236a1b4fb1b1b7"],
        "korean/train": [
            "ba6518984060357d7cce502357ed86ee2d3844e21b28d297020cc18a1408f058",
            "82eb73d86af8e77c31db42403aa0b937d6784d23ea045f175d0e7d259f27cf86",
        ],
        "korean/validation": ["52bc7a80741111bb0feee582ac6f79867afc3f189e759eb6e81be42359c70ade"],
    },
    "packs": {
        "code/train": [
            "94de2bf9a08d5104620025919ea383c029e1217e5921cf78d62a8eb57f8e03aa",
            "4c6f79bc168b01ed0951bde3d1a4da45ef611af164e874048be4e0f51a3046ee",
        ],
        "code/validation": ["b601dae1737ae7ea6db9e1fc292bd378c35bfa90e04c1108f4cdc297c1f00dc6"],
        "prose-en/train": [
            "91a2cc6dbb4c3f5896ee23e08d8f81842317e2d6fc80de4fb38f51a8d253cd0b",
            "b2f30c07712292404af40632923bcf61413dc3cbea91dbf9d065e655124e2732",
        ],
        "prose-en/validation": ["1d303b9af1790c6b65aa8613f2b6a6efb39e6134dcf0d16b4363104d63ab2179"],
        "korean/train": [
            "f2450e19f447bc04a2e451c4efece7628eed2d19c49876bd07ec648b4e71c3ff",
            "5f339b5135b0044841d5090c504521b6db33167c8785c0cce27be2ffcb87875c",
        ],
        "korean/validation": ["c58b1c7dbbdfe49e92c834ed29847fbc4d593fc88c324289d3cd9b2777f436e6"],
    },
    "catalogs": {
        "code/train": "2e8caff05427b2b86e2de1bdc7434d1cb31f6ae1f656326b34c460b24b29269b",
        "code/validation": "294f589a3c84a97d1a4338ec1cabf167082245a1223861aa5453a356e0cdb28b",
        "prose-en/train": "816c8a1b479ca47d6e7e9d2730aadb2c9ba478dff143759fbb117a56037792a8",
        "prose-en/validation": "b8e647ddc7a4ac807f84f73f34edc870d7adf66aaa60290e8a8eddb9ebef5647",
        "korean/train": "63d267f7cd39fe5f32516aac9d0b35ae92284b7167b095305000890ea04eaaf8",
        "korean/validation": "b0f7873da73211c89200187dbf3b414548e6b6edc19122a842525e80220b1fa0",
    },
    "stats": {
        "code/train": "d9ee0de58f45f1f366ae2ac00958844f7486a8229703ead07ca76c669c09ae1d",
        "code/validation": "e6a2377967bc8504bc65675b5a6629975d3a8aeb1cb11abeaa5fd2f8b845ff90",
        "prose-en/train": "2f49e46e2a6b24acbd97bbef3ae1eb4045611825b4941ee55feea155ef349893",
        "prose-en/validation": "bda1d99a36ee271894913accd57ead893f89d3f4652944903a2816ca7d87e214",
        "korean/train": "c1e0c322d381e0d0c01a255ce52a9f78c1cbc53c7a05df63d8884514004f1e6e",
        "korean/validation": "852ce726588ba2cc257e471b9143c2955992a1bac5d1fd55b8bba88bb5cee87f",
    },
    "view_id": "cd2993d062699fc3b3e2065c933321ad7653874454562f4d02518a99a68d7152",
}


def test_ids_are_the_literals():
    assert identities() == EXPECTED


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_ids_are_equal_in_fresh_processes(hash_seed):
    environment = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "loader")]),
        "TOKENIZERS_PARALLELISM": "true" if hash_seed == "0" else "false",
        "TZ": "Asia/Seoul",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.run_view.view_fixture"], cwd=ROOT, env=environment, capture_output=True, check=True
    )
    assert json.loads(done.stdout) == EXPECTED
