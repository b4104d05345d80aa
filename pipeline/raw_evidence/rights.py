"""Licences as SPDX expressions, or `unknown`. A licence is never guessed: what is ambiguous stays `unknown`, stated text is kept."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

UNKNOWN = "unknown"

# Only classifiers that name exactly one licence. "BSD License", "Apache Software License", "GNU General Public License v3" and
# the like name several (PEP 639, section on deprecated classifiers) and stay `unknown`.
CLASSIFIERS = {
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: MIT No Attribution License (MIT-0)": "MIT-0",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "License :: OSI Approved :: The Unlicense (Unlicense)": "Unlicense",
    "License :: OSI Approved :: Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "License :: OSI Approved :: GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "License :: OSI Approved :: GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "License :: OSI Approved :: GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
    "License :: OSI Approved :: GNU Affero General Public License v3 or later (AGPLv3+)": "AGPL-3.0-or-later",
    "License :: CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": "CC0-1.0",
}


def spdx(stated: str) -> str | None:
    """The expression in canonical spelling (`mit or apache-2.0` -> `MIT OR Apache-2.0`), `unknown`, or None when it is neither."""
    if stated.strip().lower() == UNKNOWN:
        return UNKNOWN
    try:
        return str(canonicalize_license_expression(stated.strip()))
    except InvalidLicenseExpression:
        return None


def of_package(expression: str | None, *, stated: str | None, classifiers: Iterable[str]) -> str:
    """Licence of an installed package from its metadata.

    Args: expression, the License-Expression field; stated, the older License field, taken only where it is itself a valid
        expression; classifiers, all of them, used when exactly one licence is named and without doubt.
    """
    for text in (expression, stated):
        found = spdx(text) if text else None
        if found:
            return found
    named = [text for text in classifiers if text.startswith("License ::") and text != "License :: OSI Approved"]
    return CLASSIFIERS.get(named[0], UNKNOWN) if len(named) == 1 else UNKNOWN
