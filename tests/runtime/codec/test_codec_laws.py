"""The laws of the codec, on random planes and on every code there is."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsruntime.codec import fp4
from dsruntime.codec.layout import Correction, ExpertShape
from dsruntime.codec.loops import Loops

MIB = 2**20
COMPILED, PLAIN = Loops(), Loops(compiled=False)
planes = st.tuples(st.integers(1, 5), st.integers(1, 4)).flatmap(
    lambda nk: hnp.arrays(np.uint8, (nk[0], nk[1] * 16))
)


def plain_base(code: int) -> int:
    """The base code of one FP4 code, from the words of the definition."""
    value = fp4.E2M1[code]
    magnitude = 1.0 if abs(value) <= 2.0 else 4.0
    signed = -magnitude if np.signbit(value) else magnitude
    return [-4.0, -1.0, 1.0, 4.0].index(signed)


@given(planes)
def test_base_codes_follow_the_definition_weight_by_weight(packed: np.ndarray) -> None:
    expected = [[plain_base(code) for code in row] for row in fp4.unpack_nibbles(packed)]
    assert fp4.unpack_base(fp4.encode_base(packed)).tolist() == expected


@given(planes)
def test_base_and_split_correction_give_the_checkpoint_back_bit_for_bit(
    packed: np.ndarray,
) -> None:
    low, high = fp4.encode_split(packed)
    assert np.array_equal(fp4.decode_split(fp4.encode_base(packed), low, high), packed)


def test_every_pair_of_codes_survives_next_to_every_other_pair() -> None:
    pairs = np.arange(256, dtype=np.uint8)
    for shift in range(0, 256, 7):
        packed = np.stack([pairs, np.roll(pairs, shift)], -1).reshape(32, 16)
        low, high = fp4.encode_split(packed)
        assert np.array_equal(fp4.decode_split(fp4.encode_base(packed), low, high), packed)


@given(planes)
def test_encoding_what_was_decoded_changes_nothing(packed: np.ndarray) -> None:
    base = fp4.encode_base(packed)
    assert np.array_equal(fp4.encode_base(fp4.base_as_fp4(base)), base)


@given(planes)
def test_the_numpy_path_computes_what_the_compiled_path_computes(packed: np.ndarray) -> None:
    base, (low, high) = PLAIN.base(packed), PLAIN.split(packed)
    assert np.array_equal(COMPILED.base(packed), base)
    assert all(
        np.array_equal(a, b) for a, b in zip(COMPILED.split(packed), (low, high), strict=True)
    )
    assert np.array_equal(PLAIN.join(base, low, high), packed.reshape(-1))


@given(planes)
def test_negating_weights_negates_the_base(packed: np.ndarray) -> None:
    scales = np.full((packed.shape[0], packed.shape[1] // 16), 127, np.uint8)
    negated = packed ^ np.uint8(0x88)
    there, back = (fp4.decode_base(fp4.encode_base(p), scales) for p in (packed, negated))
    assert np.array_equal(there, -back)


def test_pair_layout_is_the_documented_one() -> None:
    """Pair j is in nibble j % 2 of low byte j // 2 and at bit j % 8 of high byte j // 8."""
    packed = np.zeros((1, 16), np.uint8)
    packed[0, 5] = 0x34  # pair 5: magnitude codes 4 and 3 -> 4 + 5 * 3 = 19
    low, high = fp4.encode_split(packed)
    assert low[0].tolist() == [0, 0, 0x30, 0, 0, 0, 0, 0]
    assert high[0].tolist() == [1 << 5, 0]


def test_edge_scales_have_their_ocp_meaning_and_do_not_touch_codes() -> None:
    packed = np.full((1, 48), 0x72, np.uint8)  # values 1 and 6
    scales = np.array([[0, 254, 255]], np.uint8)
    values = fp4.decode_fp4(packed, scales)[0]
    assert values[:2].tolist() == [2.0**-127, 6 * 2.0**-127]
    assert values[32:34].tolist() == [2.0**127, 6 * 2.0**127]
    assert np.isnan(values[64:]).all()
    assert np.isnan(fp4.decode_base(fp4.encode_base(packed), scales)[0, 64:]).all()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31))
def test_bias_is_orders_of_magnitude_below_the_error(seed: int) -> None:
    random = np.random.default_rng(seed)
    packed = fp4.pack_nibbles(random.integers(0, 16, (256, 1024), dtype=np.uint8))
    scales = np.full((256, 32), 127, np.uint8)
    error = fp4.decode_base(fp4.encode_base(packed), scales) - fp4.decode_fp4(packed, scales)
    rms = float(np.sqrt((error**2).mean()))
    # five standard errors of the mean of 262,144 weights: about 1 % of the error itself
    assert rms > 0.5
    assert abs(float(error.mean())) < 5 * rms / np.sqrt(error.size)


def test_zeros_go_by_their_sign_bit_and_balance() -> None:
    packed = fp4.pack_nibbles(np.tile(np.array([0, 8], np.uint8), (4, 16)))
    assert fp4.unpack_base(fp4.encode_base(packed))[0, :4].tolist() == [2, 1, 2, 1]
    scales = np.full((4, 1), 127, np.uint8)
    assert fp4.decode_base(fp4.encode_base(packed), scales).sum() == 0.0


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_slot_sizes_of_the_real_model(ranks: int) -> None:
    shape = ExpertShape(4096, 2048 // ranks)
    assert shape.base.size_bytes * ranks == 6.75 * MIB
    assert shape.correction(Correction.PLAIN).size_bytes * ranks == 12 * MIB
    assert shape.correction(Correction.SPLIT).size_bytes * ranks == 7.5 * MIB
    assert shape.correction(Correction.PLAIN, own_scales=True).size_bytes * ranks == 12.75 * MIB
    assert [p.name for p in shape.base.planes] == ["codes13", "scales13", "codes2", "scales2"]
    assert shape.base.stride_bytes % 4096 == 0
