"""Every kept document is in exactly one component, whatever the order of rows."""

import pyarrow as pa
import pytest

from pipeline.errors import ContractError, MixtureError
from pipeline.recipe import Component
from pipeline.tokenized_shards.components import assign

ROWS = [
    {"source": "web", "language": "en", "kind": "prose", "domain": "news"},
    {"source": "web", "language": "zxx", "kind": "code", "domain": "python"},
    {"source": "web", "language": "ko", "kind": "prose", "domain": "news"},
    {"source": "own", "language": "en", "kind": "math", "domain": "algebra"},
]
TABLE = pa.Table.from_pylist(ROWS * 3)
WHOLE = (
    Component("code", kinds=("code",)),
    Component("english", sources=("web",), languages=("en", "und"), kinds=("prose",)),
    Component("korean", languages=("ko",), domains=("news", "law")),
    Component("own", sources=("own",)),
)


def test_each_row_gets_its_component_in_row_order():
    assert assign(TABLE, WHOLE).to_pylist() == ["english", "code", "korean", "own"] * 3
    backwards = TABLE.take(list(range(11, -1, -1)))
    assert assign(backwards, WHOLE).to_pylist() == ["own", "korean", "code", "english"] * 3
    assert assign(TABLE.slice(0, 0), WHOLE).to_pylist() == []


def test_documents_in_none_and_in_several_are_named_with_counts():
    overlapping = (Component("prose", kinds=("prose",)), Component("korean", languages=("ko",)), Component("code", kinds=("code",)))
    with pytest.raises(MixtureError) as caught:
        assign(TABLE, overlapping)
    message = str(caught.value)
    assert "In none: (source=own, language=en, kind=math, domain=algebra): 3 documents." in message
    assert "In several: (source=web, language=ko, kind=prose, domain=news): 3 documents in ['prose', 'korean']" in message
    assert "kind=code" not in message


def test_a_null_attribute_is_a_broken_contract():
    with pytest.raises(ContractError, match=r"\{'language': 1\} nulls"):
        assign(pa.Table.from_pylist([*ROWS, {**ROWS[0], "language": None}]), WHOLE)
