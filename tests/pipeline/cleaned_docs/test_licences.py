"""SPDX expressions against a list of allowed licences."""

from __future__ import annotations

import pytest

from pipeline.cleaned_docs.licences import is_allowed

ALLOWED = ("MIT", "Apache-2.0", "GPL-2.0-only WITH Classpath-exception-2.0", "LicenseRef-Terms AND Conditions")


@pytest.mark.parametrize(
    "expression",
    ["MIT", "MIT OR GPL-3.0-only", "GPL-3.0-only or MIT", "MIT AND Apache-2.0", "(GPL-3.0-only OR MIT) AND Apache-2.0",
     "GPL-2.0-only WITH Classpath-exception-2.0", "MIT AND GPL-3.0-only OR Apache-2.0", "LicenseRef-Terms AND Conditions"],
)  # fmt: skip
def test_allowed(expression):
    assert is_allowed(expression, ALLOWED)


@pytest.mark.parametrize(
    "expression",
    ["unknown", "", "MIT AND GPL-3.0-only", "GPL-2.0-only", "MIT WITH Classpath-exception-2.0", "(MIT", "MIT)", "MIT OR", "AND MIT",
     "MIT MIT", "mit", "MIT AND (GPL-3.0-only OR BSD-3-Clause)", "GPL-2.0-only WITH"],
)  # fmt: skip
def test_not_allowed(expression):
    assert not is_allowed(expression, ALLOWED)
