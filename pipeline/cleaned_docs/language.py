"""Language of a text, after its kind: code has none, Hangul decides by share, a model for the rest, and `und` when unsure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numba
import numpy as np
import polars as pl
from numpy.typing import NDArray
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from pipeline.cleaned_docs.measure import letters, utf8
from pipeline.recipe import Language

UNDETERMINED, NO_LANGUAGE, KOREAN = "und", "zxx", "ko"  # ISO 639
# Hangul writes one language; above this share of the letters a text is Korean with foreign words in it. The share keeps Korean
# sentences full of English terms (cases C09 l2 and l6: 0.36 and 0.39) and leaves English that quotes a Korean word.
MIN_HANGUL_SHARE = 0.3
# The last digits of a float sum may differ between machines; scores are rounded before they are compared or stored.
SCORE_DIGITS = 3

SCHEMA = {"language": pl.String, "language_score": pl.Float64, "language_runner_up": pl.String, "language_runner_up_score": pl.Float64}
_LATEX = r"(?s)\$\$.*?\$\$|\$[^$\n]*\$|\\\[.*?\\\]|\\\(.*?\\\)|\\[A-Za-z]+\*?|\\[^A-Za-z\s]|[{}^_&~]"
_TURN = r"(?m)^### .*$"


@lru_cache(maxsize=1)
def model_digest() -> str:
    """sha256 of the language model's file, for the stage version."""
    return hashlib.sha256(resources.files("py3langid").joinpath(MODEL_FILE).read_bytes()).hexdigest()


@dataclass(frozen=True)
class _Model:
    """Arrays of the model: the automaton over bytes, the feature each state emits, log probabilities [features, labels]."""

    labels: tuple[str, ...]
    aliases: tuple[tuple[int, int], ...]
    moves: NDArray[np.uint32]
    row_of_state: NDArray[np.int64]
    feature_of_state: NDArray[np.int32]
    weights: NDArray[np.float32]
    prior: NDArray[np.float64]


@lru_cache(maxsize=1)
def _model() -> _Model:
    read = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    labels = tuple(read.nb_classes)
    first = {label: i for i, label in reversed(list(enumerate(labels)))}
    return _Model(
        labels,
        tuple((first[label], i) for i, label in enumerate(labels) if first[label] != i),
        np.asarray(read.tk_nextmove, dtype=np.uint32),
        np.asarray(read.tk_row, dtype=np.int64),
        np.asarray(read.tk_output, dtype=np.int32),
        np.ascontiguousarray(read.nb_ptc, dtype=np.float32),
        np.asarray(read.nb_pc, dtype=np.float64),
    )


def scores(texts: pl.Series) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Labels of the model and the probability of each for each text. Shape: [D, labels].

    The arithmetic of py3langid's `rank` with normalised probabilities, over the column at once: its walk is Python code and takes
    some ten times as long. A test holds the two together. A text in capitals is lowered first, as there.
    """
    model = _model()
    capitals = (texts == texts.str.to_uppercase()) & (texts != texts.str.to_lowercase())
    if capitals.any():
        texts = texts.zip_with(~capitals, texts.str.to_lowercase())
    data, offsets = utf8(texts)
    logits = _walk(data, offsets, model.moves, model.row_of_state, model.feature_of_state, model.weights, model.prior)
    logits /= np.sqrt(np.maximum(np.diff(offsets), 1))[:, None]
    out: NDArray[np.float64] = np.exp(logits - logits.max(axis=1, keepdims=True))
    out /= out.sum(axis=1, keepdims=True)
    for kept, folded in model.aliases:
        out[:, kept] += out[:, folded]
        out[:, folded] = 0.0
    return model.labels, out


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _walk(data, offsets, moves, row_of_state, feature_of_state, weights, prior):  # type: ignore[no-untyped-def]
    """Naive Bayes scores before normalisation. Shape: [D, labels]; zero for a text without any feature."""
    n_labels = len(prior)
    out = np.zeros((len(offsets) - 1, n_labels))
    seen = np.zeros(len(weights), dtype=np.int64)
    order = np.empty(len(weights), dtype=np.int64)
    for d in range(len(offsets) - 1):
        state, n = np.int64(0), 0
        for i in range(offsets[d], offsets[d + 1]):
            state = np.int64(moves[row_of_state[state] * 256 + np.int64(data[i])])
            feature = feature_of_state[state]
            if feature >= 0:
                if seen[feature] == 0:
                    order[n] = feature
                    n += 1
                seen[feature] += 1
        if n == 0:
            continue
        row = out[d]
        row[:] = prior
        for k in range(n):
            weight = np.log1p(np.float64(seen[order[k]]))
            seen[order[k]] = 0
            line = weights[order[k]]
            for label in range(n_labels):
                row[label] += weight * line[label]
    return out


def sample(texts: pl.Series, kinds: pl.Series, *, max_chars: int) -> pl.Series:
    """What language is judged on: at most `max_chars` characters from the beginning, on one line.

    Mathematics without its LaTeX, conversations without their header lines.
    """
    head = texts.str.slice(0, 4 * max_chars).rename("text")
    frame = pl.DataFrame({"text": head, "kind": kinds})
    plain = (
        pl.when(pl.col("kind") == "math")
        .then(pl.col("text").str.replace_all(_LATEX, " "))
        .when(pl.col("kind") == "chat")
        .then(pl.col("text").str.replace_all(_TURN, " "))
        .otherwise(pl.col("text"))
    )
    return frame.select(plain.str.slice(0, max_chars).str.replace_all(r"\s+", " ").str.strip_chars().alias("text")).to_series()


def identify(texts: pl.Series, kinds: pl.Series, *, config: Language) -> pl.DataFrame:
    """Language of each text: columns of `SCHEMA`.

    `zxx` for code; `und` below `min_chars` letters; `ko` above the Hangul share, without a score, since no model was asked; else
    the model's answer at `min_score` or more. Below it the answer is `und`: the score is the best guess's, and the runner-up names
    that guess, for review. Otherwise the runner-up is the second best.
    """
    n = len(texts)
    language = np.full(n, UNDETERMINED, dtype=object)
    score, second_score = np.full(n, np.nan), np.full(n, np.nan)
    second = np.full(n, None, dtype=object)
    is_code = (kinds == "code").to_numpy()
    language[is_code] = NO_LANGUAGE
    rows = np.flatnonzero(~is_code)
    if len(rows):
        judged = sample(texts.gather(rows), kinds.gather(rows), max_chars=config.max_chars)
        n_letters, n_hangul = letters(judged)
        enough = n_letters >= max(config.min_chars, 1)
        korean = enough & (n_hangul > MIN_HANGUL_SHARE * n_letters)
        language[rows[korean]] = KOREAN
        asked = np.flatnonzero(enough & ~korean)
        if len(asked):
            labels, found = scores(judged.gather(asked))
            best, p, other, q = _top_two(found)
            names = np.array(labels, dtype=object)
            # the model's own `zxx` (no language in the text) is no answer for something that is not code
            sure = (p >= float(config.min_score)) & (names[best] != NO_LANGUAGE)
            at = rows[asked]
            language[at] = np.where(sure, names[best], UNDETERMINED)
            score[at] = p
            second[at] = np.where(sure, names[other], names[best])
            second_score[at] = np.where(sure, q, p)
    return pl.DataFrame(
        {
            "language": pl.Series(language.tolist(), dtype=pl.String),
            "language_score": pl.Series(score, dtype=pl.Float64).fill_nan(None),
            "language_runner_up": pl.Series(second.tolist(), dtype=pl.String),
            "language_runner_up_score": pl.Series(second_score, dtype=pl.Float64).fill_nan(None),
        },
        schema=SCHEMA,
    )


def _top_two(found: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Best and second label of each row with their rounded scores; of equal scores the earlier label."""
    rows = np.arange(len(found))
    best = found.argmax(axis=1)
    p = found[rows, best].round(SCORE_DIGITS)
    rest = found.copy()
    rest[rows, best] = -1.0
    other = rest.argmax(axis=1)
    return best, p, other, rest[rows, other].round(SCORE_DIGITS)
