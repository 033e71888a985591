"""A vet for people: the verdict and its reasons; the page has everything and renders nothing."""

from __future__ import annotations

from dsctl.vet.show import page, text
from tests.launcher.vet.values import all_known, attempt, community, facts, run, vet_of

PROFILE = community()
QUIET = (run(), all_known(PROFILE))


def test_a_good_image_is_one_line_and_the_verdict() -> None:
    lines = list(text(vet_of(facts(), QUIET, PROFILE), verbose=False))
    assert len(lines) == 2
    assert "✓ pass: 0 failed, 0 warned" in lines[1]


def test_what_is_wrong_comes_first_with_what_to_do() -> None:
    noisy = run(attempts=(attempt("tcp", "203.0.113.9", port=443),))
    lines = list(text(vet_of(facts(user=""), (noisy, *QUIET), PROFILE), verbose=False))
    assert "✗ it tried to reach 203.0.113.9:443  (egress.connections)" in lines[1]
    assert any(line.strip().startswith("→ find out who calls") for line in lines)
    assert lines[-1].startswith("✗ fail: 1 failed, 1 warned")


def test_the_page_says_all_and_shows_what_an_image_says_as_it_is() -> None:
    odd = facts(labels={"a": "b"}, env={"X": "1"}, healthcheck="`rm` <script>")
    written = page(vet_of(odd, QUIET, PROFILE))
    assert written.startswith(f"# {odd.asked}: pass\n")
    for part in ("`a=b`", "`X=1`", "vllm 0.32.0 (python)", "it tried to reach nothing"):
        assert part in written
    assert "`'rm' <script>`" in written
