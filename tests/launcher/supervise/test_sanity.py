"""Real texts in many languages are text; what broken builds put out is not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsctl.supervise.sanity import insane, leak

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
GOOD = sorted((HERE / "texts" / "good").glob("*.txt"))
GARBAGE = sorted((HERE / "texts" / "garbage").glob("*.txt"))


@pytest.mark.parametrize("path", GOOD, ids=lambda p: p.stem)
def test_a_text_that_a_person_wrote_is_text(path: Path) -> None:
    assert insane(path.read_text()) is None


@pytest.mark.parametrize("path", GOOD, ids=lambda p: p.stem)
def test_so_is_each_half_of_it(path: Path) -> None:
    text = path.read_text()
    assert insane(text[: len(text) // 2]) is None
    assert insane(text[len(text) // 2 :]) is None


@pytest.mark.parametrize("path", GARBAGE, ids=lambda p: p.stem)
def test_what_broken_builds_put_out_is_no_text(path: Path) -> None:
    found = insane(path.read_text(), english=True)
    assert found is not None
    assert found.why


@pytest.mark.parametrize("path", [p for p in GOOD if p.stem.startswith("english")])
def test_english_passes_where_english_was_asked_for(path: Path) -> None:
    assert insane(path.read_text(), english=True) is None


@pytest.mark.parametrize("name", ["german", "french", "spanish", "russian", "chinese", "czech"])
def test_another_language_does_not(name: str) -> None:
    text = (HERE / "texts" / "good" / f"{name}.txt").read_text()
    assert insane(text, english=True) is not None


def test_the_documents_of_this_project_are_text() -> None:
    """Long real texts: prose, tables, code and YAML."""
    files = [*ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("profiles/*.yaml")]
    assert len(files) > 5
    for path in files:
        found = insane(path.read_text())
        assert found is None, f"{path.name}: {found}"


@given(character=st.characters(categories=["L", "P", "S", "N"]), count=st.integers(80, 2000))
def test_one_character_for_ever_is_garbage(character: str, count: int) -> None:
    assert insane(character * count, english=True) is not None


@given(
    words=st.lists(
        st.sampled_from(["ship", "tide", "salt", "wool", "north", "clerk"]), min_size=1, max_size=6
    ),
    count=st.integers(60, 300),
)
def test_a_loop_is_garbage(words: list[str], count: int) -> None:
    assert insane(" ".join(words * count)) is not None


@given(seed=st.integers(0, 10_000))
def test_bytes_that_are_no_text_are_garbage(seed: int) -> None:
    noise = random.Random(seed).randbytes(600).decode(errors="replace")
    assert insane(noise) is not None


@pytest.mark.parametrize(
    ("text", "reasoning", "cause"),
    [
        ("Paris.", "It is Paris.", None),
        ("if x < 3 and y > 4: print('<b>')", "", None),
        ("</think>Paris.", "", "output.think-tag-leak"),
        ("Paris.", "so <think> it is", "output.think-tag-leak"),
        ('<tool_call>{"name": "x"}</tool_call>', "", "output.tool-markup-leak"),
        ("<｜DSML｜function_calls>", "", "output.tool-markup-leak"),
        ("ok <｜end▁of▁sentence｜>", "", "output.tool-markup-leak"),
    ],
)
def test_markup_that_a_parser_left_is_a_leak(text: str, reasoning: str, cause: str | None) -> None:
    found = leak(text, reasoning)
    assert (found.cause if found else None) == cause


def test_nothing_is_no_text() -> None:
    assert insane("") is not None
    assert insane(" \n\t ") is not None
