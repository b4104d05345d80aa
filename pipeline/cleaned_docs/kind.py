"""Content kind and domain, decided before anything that depends on them.

In this order: the kind the source declares; chat for conversations; the file's suffix; else what the text looks like.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.cleaned_docs.extract import METADATA_TYPE
from pipeline.cleaned_docs.measure import words_and_lines
from pipeline.recipe import Source

# suffix -> language, as GitHub Linguist names it; data and markup formats count as code, since no rule of prose fits them
LANGUAGES = {
    "py": "python", "pyi": "python", "pyx": "cython", "pxd": "cython", "ipynb": "json", "c": "c", "h": "c", "cc": "cpp", "cpp": "cpp",
    "cxx": "cpp", "hpp": "cpp", "hh": "cpp", "cu": "cuda", "cuh": "cuda", "rs": "rust", "go": "go", "java": "java", "kt": "kotlin",
    "scala": "scala", "swift": "swift", "m": "objective-c", "cs": "csharp", "fs": "fsharp", "js": "javascript", "mjs": "javascript",
    "cjs": "javascript", "jsx": "javascript", "ts": "typescript", "tsx": "typescript", "rb": "ruby", "php": "php", "pl": "perl",
    "pm": "perl", "lua": "lua", "r": "r", "jl": "julia", "hs": "haskell", "ml": "ocaml", "ex": "elixir", "exs": "elixir", "erl": "erlang",
    "clj": "clojure", "lisp": "lisp", "el": "lisp", "sql": "sql", "sh": "shell", "bash": "shell", "zsh": "shell", "ps1": "powershell",
    "bat": "batchfile", "f": "fortran", "f90": "fortran", "f95": "fortran", "for": "fortran", "asm": "assembly", "s": "assembly",
    "v": "verilog", "sv": "verilog", "vhd": "vhdl", "proto": "protobuf", "cmake": "cmake", "mk": "makefile", "dockerfile": "dockerfile",
    "json": "json", "jsonl": "json", "yaml": "yaml", "yml": "yaml", "toml": "toml", "ini": "ini", "cfg": "ini", "xml": "xml",
    "html": "html", "htm": "html", "css": "css", "scss": "css", "jinja": "jinja", "j2": "jinja", "csv": "csv", "tsv": "csv",
}  # fmt: skip
MEDIA_LANGUAGES = {
    "text/x-python": "python", "application/javascript": "javascript", "text/javascript": "javascript", "text/x-c": "c",
    "text/x-java-source": "java", "application/x-sh": "shell", "text/css": "css", "text/html": "html", "application/xml": "xml",
    "text/xml": "xml", "application/toml": "toml", "application/yaml": "yaml",
}  # fmt: skip
# written for people whatever they quote: never code, but perhaps mathematics
_PROSE_SUFFIXES = ("md", "markdown", "rst", "txt", "text", "adoc", "tex")
_PROSE_TYPES = (METADATA_TYPE, "text/markdown", "text/x-rst")

# The heuristics read this much of a text: some two hundred lines, and a bound on their cost (a fifth of cleaning on prose).
SAMPLE_CHARS = 8_000
# Marks of mathematics per word from which a text is mathematics, and share of lines that look like code from which it is code.
# Measured marks: competition problems 0.10 in the middle, 0.015 at the 5 % quantile; web pages, licences, descriptions at most 0.004.
# Measured lines: web pages at most 0.22, licences 0.10, descriptions 0.32; short functions 0.80 in the middle, whole Python files with
# their docstrings 0.48. So half of the Python without a suffix is taken for prose: the other error would let prose escape its rules.
MIN_MATH_MARKS_PER_WORD = 0.05
MIN_CODE_LINES = 0.5

_MATH_COMMANDS = (
    "frac|dfrac|tfrac|sqrt|sum|prod|int|iint|oint|lim|infty|partial|nabla|cdot|cdots|ldots|dots|times|div|pm|le|leq|ge|geq|ne|neq"
    "|equiv|approx|sim|cong|in|notin|subset|subseteq|cup|cap|forall|exists|to|mapsto|rightarrow|Rightarrow|iff|implies|mathbb|mathcal"
    "|mathrm|mathbf|operatorname|text|left|right|binom|overline|vec|hat|bar|alpha|beta|gamma|delta|epsilon|varepsilon|theta|lambda|mu"
    "|pi|rho|sigma|tau|phi|varphi|chi|psi|omega|Gamma|Delta|Lambda|Sigma|Phi|Omega|sin|cos|tan|log|ln|exp|det|gcd|mod|pmod|circ|angle"
    "|triangle|begin\\{(?:align|equation|gather|cases|matrix|pmatrix|bmatrix|array)\\*?\\}"
)
_MATH = rf"\\(?:{_MATH_COMMANDS})(?:\b|_)|\$[^$\n]{{0,200}}[\\^_=<>+][^$\n]{{0,200}}\$|\$[A-Za-z]\$|\\\["
_CODE_LINE = (
    r"(?m)^[ \t]*(?:def |class |import [a-z]|from [a-zA-Z0-9_.]+ import |return\b|(?:if|for|while|with|elif|except)\b.*:[ \t]*$|else:|try:"
    r"|async def |#include\b|#define\b|using [A-Z]|public |private |protected |static |const |let |var |func |fn |function\b|package [a-z]"
    r"|namespace |[{}]|//|/\*|@[a-z]+|</?[a-z]+[ >]|[a-zA-Z0-9_.\[\]]+ ?[-+*/|&:]?= ?\S|[a-zA-Z0-9_.]+\(.*\)[ \t]*$"
    r"|.*(?:[a-zA-Z0-9_)\]\"'>]; *|[{}])[ \t]*$)"
)
# LaTeX lines end with a brace too, but are no code
_LATEX_LINE = r"(?m)^[ \t]*\\[A-Za-z]+.*[;{}][ \t]*$"
_SUFFIX = re.compile(r"(?:^|/)[^/]*?\.([A-Za-z0-9]+?)(?:\.(?:gz|zst))?(?:[^A-Za-z0-9./_-]+\w*)?$")


def suffixes(record_keys: pl.Series) -> pl.Series:
    """Lower-case suffix of the file in a record key (a place within the file may follow it); null without one."""
    return record_keys.str.extract(_SUFFIX.pattern, 1).str.to_lowercase()


def kinds(texts: pl.Series, record_keys: pl.Series, media_types: pl.Series, *, source: Source) -> tuple[pl.Series, pl.Series]:
    """Content kind (prose, code, math, chat) and domain of each document.

    The domain of code is its programming language where suffix or media type name it; else the domain the source declares.
    Where fields of records hold the text, the suffix is the container's and says nothing.
    """
    n = len(texts)
    records = source.reader in ("jsonl", "parquet")
    none = pl.Series([None] * n, dtype=pl.String)  # of the container, not of the text
    suffix = none if records else suffixes(record_keys)
    by_suffix = suffix.replace_strict(LANGUAGES, default=None, return_dtype=pl.String)
    by_type = (none if records else media_types).replace_strict(MEDIA_LANGUAGES, default=None, return_dtype=pl.String)
    language = by_suffix.zip_with(by_suffix.is_not_null(), by_type)
    if source.kind:
        kind = pl.Series([source.kind] * n, dtype=pl.String)
    elif source.fields.get("messages"):
        kind = pl.Series(["chat"] * n, dtype=pl.String)
    else:
        for_people = suffix.is_in(_PROSE_SUFFIXES).fill_null(False) | media_types.is_in(_PROSE_TYPES)
        known = language.is_not_null().to_numpy()
        found = _looks(texts, open_rows=~known, may_be_code=~for_people.to_numpy())
        kind = pl.Series(np.where(known, "code", found), dtype=pl.String)
    is_code = kind == "code"
    domain = language.zip_with(is_code & language.is_not_null(), pl.Series([source.domain] * n, dtype=pl.String))
    return kind, domain


def _looks(texts: pl.Series, *, open_rows: NDArray[np.bool_], may_be_code: NDArray[np.bool_]) -> NDArray[np.str_]:
    """Kind by the look of the text, for `open_rows`; prose elsewhere."""
    out = np.full(len(texts), "prose", dtype="<U5")
    rows = np.flatnonzero(open_rows)
    if not len(rows):
        return out
    sample = texts.gather(rows).str.slice(0, SAMPLE_CHARS)
    words, lines = words_and_lines(sample)
    is_math = np.zeros(len(rows), dtype=bool)
    marked = np.flatnonzero((sample.str.contains("\\", literal=True) | sample.str.contains("$", literal=True)).to_numpy())
    if len(marked):
        marks = sample.gather(marked).str.count_matches(_MATH).to_numpy()
        is_math[marked] = (marks > 0) & (marks >= MIN_MATH_MARKS_PER_WORD * words[marked])
    is_code = np.zeros(len(rows), dtype=bool)
    asked = np.flatnonzero(may_be_code[rows] & ~is_math)
    if len(asked):
        part = sample.gather(asked)
        like = part.str.count_matches(_CODE_LINE).cast(pl.Int64) - part.str.count_matches(_LATEX_LINE).cast(pl.Int64)
        is_code[asked] = (lines[asked] > 0) & (like.to_numpy() >= MIN_CODE_LINES * lines[asked])
    out[rows] = np.where(is_math, "math", np.where(is_code, "code", "prose"))
    return out
