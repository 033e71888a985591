"""Tokens of a KV cache: the engine's own answers, recorded, and laws of the arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsctl.errors import ConfigError
from dsctl.planning.kvcache import in_flight_tokens, kv_table

MODEL = "deepseek-v4-flash-0731"
TABLE = kv_table(MODEL, "0.32.0", "cuda")


@pytest.mark.parametrize(
    ("nbytes", "window", "batched", "blocks", "tokens"),
    [  # answers of vLLM 0.32.0's get_kv_cache_capacity (profiles/contract/kv_spec.py)
        (4_176_854_056, 524_288, 1024, 4167, 751_792),
        (4_294_967_296, 524_288, 1024, 4285, 773_081),
        (21_592_948_572, 524_288, 1024, 21_544, 3_886_875),
        (4_294_967_296, 524_288, 4096, 4285, 415_878),
        (21_592_948_572, 524_288, 4096, 21_544, 2_090_940),
    ],
)
def test_capacity_is_the_engines_to_the_token(
    nbytes: int, window: int, batched: int, blocks: int, tokens: int
) -> None:
    in_flight = in_flight_tokens(batched, async_scheduling=True)
    assert nbytes // TABLE.bytes_per_block == blocks
    assert TABLE.capacity(nbytes, window, in_flight)[0] == tokens


def test_one_request_takes_what_the_engine_demands() -> None:
    assert TABLE.request_bytes(524_288, 8192) == 5_414_100_480
    canary = kv_table("canary", "0.32.0", "cpu")
    assert canary.request_bytes(4096, 4096) == 158_107_392
    assert canary.capacity(268_435_456, 4096, 4096)[0] == 6953


def test_no_table_is_an_error_that_names_the_file() -> None:
    with pytest.raises(ConfigError, match=r"kv-vllm-0\.32\.0\.json"):
        kv_table("nobody", "0.32.0", "cuda")
    with pytest.raises(ConfigError, match="missing"):
        kv_table(MODEL, "9.9.9", "cuda")


@given(
    st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.integers(1, 64), st.integers(1, 1 << 16)
)
def test_more_context_sequences_or_tokens_in_flight_never_need_less(
    shorter: int, longer: int, sequences: int, in_flight: int
) -> None:
    shorter, longer = sorted((shorter, longer))
    need = TABLE.needed_bytes(shorter, sequences, in_flight)
    assert need <= TABLE.needed_bytes(longer, sequences, in_flight)
    assert need <= TABLE.needed_bytes(shorter, sequences + 1, in_flight)
    assert need <= TABLE.needed_bytes(shorter, sequences, 2 * in_flight)
