"""Tells text that a person could have written from what a broken build puts out. Pure.

What broken builds were seen to put out: one character for ever (`!!!!!!!!`, `///////`), one foreign
token for ever, loops, bytes that are no text, words of many languages mixed, and markup that a
parser should have taken away. Each check has a bound that real texts in many languages, code,
tables and lists keep far away from; tests hold both sides.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter
from dataclasses import dataclass

from dsctl.quality.checks import MARKUP

#: Below so many words only the grossest checks say anything.
_ENOUGH_WORDS = 24
_VARIETY = 0.30
#: Real prose of a few hundred bytes compresses to a half, tables and code to a quarter.
_COMPRESSED = 0.16
_COMPRESSIBLE_BYTES = 400
_RUN = 24
_RULERS = set("-=_*#~.· \t\n│─|+")
_NOISE_SHARE = 0.02
#: Scripts that one text may mix in shares that matter, and the share that matters.
_SCRIPTS, _SCRIPT_SHARE = 3, 0.03
_MIXED_WORDS = 0.04
_WORD_LETTERS = 40
_SINGLE_LETTERS = 0.6
#: Words of English that other languages do not have too. An English text has 20 to 40 % of these;
#: in a stretch with one in ten or less it is no English any more.
_ENGLISH = frozenset(
    re.findall(
        r"\w+",
        "and are as at because been but by can could each every for from had has have her his how "
        "if into is it its may more most much not of one only or other our out over some such than "
        "that the their them then there these they this those through we were what when where "
        "which while who why will with would you your",
    )
)
_ENGLISH_SHARE = 0.10
_STRETCH_WORDS = 40
#: Scripts by the first word of a character's Unicode name. Chinese and Japanese are written
#: without spaces and take in Latin words, so they never make a mixed word.
_UNSPACED = frozenset({"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER", "MYANMAR"})
_TOGETHER = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "FULLWIDTH": "LATIN", "HALFWIDTH": "CJK"}


@dataclass(frozen=True)
class Insane:
    """Why a text is none, in words, and the cause id it is put down to."""

    why: str
    cause: str = "output.garbage"


def leak(text: str, reasoning: str = "") -> Insane | None:
    """Markup in what a client sees: of thinking, of tool calls, special tokens."""
    for where, piece in (("the answer", text), ("the reasoning", reasoning)):
        found = MARKUP.search(piece)
        if found is not None:
            tag = found.group()
            of_thinking = "think" in tag
            return Insane(
                f"{where} shows {tag!r}, which the {'reasoning' if of_thinking else 'tool-call'} "
                "parser should have taken out",
                "output.think-tag-leak" if of_thinking else "output.tool-markup-leak",
            )
    return None


def insane(text: str, *, english: bool = False) -> Insane | None:
    """Why `text` is no text; None for text a person could have written.

    `english`: an English answer was asked for, so another language is a fault too.
    """
    stripped = text.strip()
    if not stripped:
        return Insane("the answer is empty")
    why = (
        _one_character(stripped)
        or _noise(stripped)
        or _repetition(stripped)
        or _salad(stripped)
        or (_not_english(stripped) if english else None)
    )
    return Insane(why) if why else None


def _one_character(text: str) -> str | None:
    run = re.search(rf"(.)\1{{{_RUN - 1},}}", text, re.S)
    if run is not None and run[1] not in _RULERS:
        return f"{run[1]!r} stands {len(run[0])} times on end"
    letters = [c for c in text if not c.isspace()]
    most, count = Counter(letters).most_common(1)[0]
    if len(letters) >= 8 and count > 0.8 * len(letters):
        return f"it is hardly anything but {most!r}"
    return None


def _noise(text: str) -> str | None:
    """Characters that no writer uses: replacements, controls, private and unassigned ones."""
    bad = sum(
        c == "\ufffd" or (unicodedata.category(c) in ("Cc", "Co", "Cn") and c not in "\n\t\r")
        for c in text
    )
    if bad > max(1, _NOISE_SHARE * len(text)):
        return f"{bad} of {len(text)} characters are no text"
    return None


def _repetition(text: str) -> str | None:
    words = _words(text.lower())
    if len(words) >= _ENOUGH_WORDS:
        variety = len(set(words)) / len(words)
        # Long texts come back to their words; what is held to the bound is the best stretch.
        if len(words) > 200:
            pieces = [words[i : i + 100] for i in range(0, len(words) - 99, 100)]
            variety = sum(len(set(piece)) / len(piece) for piece in pieces) / len(pieces)
        if variety < _VARIETY:
            return f"only {variety:.0%} of its words are different ones"
    data = text.encode()
    if len(data) >= _COMPRESSIBLE_BYTES:
        packed = len(zlib.compress(data[:8192], 6)) / len(data[:8192])
        if packed < _COMPRESSED:
            return f"it repeats itself (compresses to {packed:.0%})"
    return None


def _salad(text: str) -> str | None:
    words = _words(text)
    scripts = Counter(script for c in text if (script := _script(c)) is not None)
    letters = sum(scripts.values())
    if letters < 3 * _ENOUGH_WORDS:
        return None
    strong = [name for name, count in scripts.items() if count >= _SCRIPT_SHARE * letters]
    if len(strong) > _SCRIPTS:
        return f"it mixes {', '.join(name.capitalize() for name in sorted(strong))}"
    mixed = [word for word in words if _is_mixed(word)]
    if len(mixed) > max(1, _MIXED_WORDS * len(words)):
        return f"words like {mixed[0][:20]!r} mix alphabets"
    if len(words) >= _ENOUGH_WORDS and scripts.most_common(1)[0][0] not in _UNSPACED:
        single = sum(len(word) == 1 for word in words) / len(words)
        if single > _SINGLE_LETTERS:
            return f"{single:.0%} of its words are single letters"
    spaced = [word for word in words if _script(word[0]) not in _UNSPACED]
    if any(len(word) > 2 * _WORD_LETTERS for word in spaced):
        return "it has words of more than 80 letters"
    return None


def _not_english(text: str) -> str | None:
    letters = sum(c.isalpha() for c in text)
    foreign = sum(_script(c) not in (None, "LATIN") for c in text)
    if foreign > max(3, 0.05 * len(text)):
        return "it falls into another alphabet"
    if len(text) >= 3 * _ENOUGH_WORDS and letters < 0.3 * len(text):
        return "it has hardly any letters"
    words = _words(text.lower())
    if len(words) < _ENOUGH_WORDS:
        return None
    size = min(len(words), _STRETCH_WORDS)
    for start in {*range(0, len(words) - size + 1, size), len(words) - size}:
        share = sum(word in _ENGLISH for word in words[start : start + size]) / size
        if share <= _ENGLISH_SHARE:
            return "it is not the English that was asked for"
    return None


def _words(text: str) -> list[str]:
    """Runs of letters with the marks on them, which scripts of India cannot be read without."""
    return re.findall(r"\S+", "".join(c if _in_word(c) else " " for c in text))


def _in_word(character: str) -> bool:
    if character.isascii():
        return character.isalpha() or character == "'"
    return character.isalpha() or unicodedata.category(character) in ("Mn", "Mc")


def _script(character: str) -> str | None:
    """The script of a letter; None for everything else."""
    if not character.isalpha():
        return None
    if character.isascii():
        return "LATIN"
    name = unicodedata.name(character, "").partition(" ")[0]
    return _TOGETHER.get(name, name) or None


def _is_mixed(word: str) -> bool:
    scripts = {s for c in word if (s := _script(c)) is not None and s not in _UNSPACED}
    scripts -= {"MODIFIER", "FEMININE", "MASCULINE", "MICRO", "SUPERSCRIPT"}
    # A single Greek letter next to Latin ones is a unit or a symbol (µs, Δx).
    if scripts == {"LATIN", "GREEK"}:
        return sum(_script(c) == "GREEK" for c in word) > 1
    return len(scripts) > 1
