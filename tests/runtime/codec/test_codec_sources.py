"""Other formats become FP4 block-32 by the formula, checked against a slow oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsruntime.codec import fp4, sources


def oracle(block: np.ndarray) -> tuple[int, list[int]]:
    """Scale byte and codes of 32 values, by search over all codes; ties to the even code."""
    amax = float(np.abs(block).max())
    exponent = -127 if amax == 0 else max(-127, min(127, round(math.log2(amax / 6))))
    codes = []
    for value in block.tolist():
        scaled = abs(value) / 2.0**exponent
        best = min(range(8), key=lambda c: (abs(float(fp4.E2M1[c]) - scaled), c % 2))
        codes.append(best | (8 if math.copysign(1.0, value) < 0 else 0))
    return exponent + 127, codes


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(-120, 110))
def test_bf16_is_snapped_as_the_formula_says(seed: int, power: int) -> None:
    values = np.random.default_rng(seed).standard_normal((2, 64)) * 2.0**power
    bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    rows = sources.bf16_rows(bits)
    made = sources.to_fp4(rows, 2, 64)
    for n in range(2):
        for b in range(2):
            scale, codes = oracle(rows(n, n + 1)[0, b * 32 : b * 32 + 32])
            assert made.scales[n, b] == scale
            assert fp4.unpack_nibbles(made.codes)[n, b * 32 : b * 32 + 32].tolist() == codes


@settings(deadline=None)
@given(st.integers(0, 2**31))
def test_the_numpy_path_quantises_as_the_compiled_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.standard_normal((4, 64)) * np.exp2(random.integers(-140, 120, (4, 64)))
    made = sources.to_fp4(lambda a, b: values[a:b], 4, 64)
    codes, scales = np.empty(128, np.uint8), np.empty(8, np.uint8)
    sources.quantise_numpy(values.reshape(-1), codes, scales)
    assert np.array_equal(made.codes.reshape(-1), codes)
    assert np.array_equal(made.scales.reshape(-1), scales)


def test_ties_go_to_the_even_code_and_too_large_goes_to_six() -> None:
    row = np.zeros((1, 32))
    row[0, :9] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 8.0, -0.25]
    codes = fp4.unpack_nibbles(sources.to_fp4(lambda a, b: row, 1, 32).codes)[0]
    assert codes[:9].tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 8]


def test_every_e4m3_byte_has_the_value_that_torch_gives_it() -> None:
    expected = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()
    assert np.array_equal(sources.E4M3, expected, equal_nan=True)


@pytest.mark.parametrize("shape", [(128, 128), (160, 256)])
def test_fp8_blocks_scale_the_right_weights(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    weight = random.integers(0, 120, shape, dtype=np.uint8)
    blocks = (-(-shape[0] // 128), -(-shape[1] // 128))
    scale = random.integers(110, 140, blocks, dtype=np.uint8)
    read = sources.fp8_rows(weight, scale)(0, shape[0])
    for n, k in ((0, 0), (127, 127), (shape[0] - 1, shape[1] - 1)):
        expected = sources.E4M3[weight[n, k]] * 2.0 ** (int(scale[n // 128, k // 128]) - 127)
        assert read[n, k] == expected


def test_nvfp4_is_code_times_block_scale_times_factor() -> None:
    random = np.random.default_rng(2)
    codes = random.integers(0, 256, (3, 32), dtype=np.uint8)
    scale = random.integers(0, 120, (3, 4), dtype=np.uint8)
    read = sources.nvfp4_rows(codes, scale, 0.25)(0, 3)
    value = fp4.E2M1[fp4.unpack_nibbles(codes)[2, 37]] * sources.E4M3[scale[2, 37 // 16]] * 0.25
    assert read[2, 37] == value


def test_fp4_values_come_back_as_the_same_fp4_when_a_block_uses_its_range() -> None:
    random = np.random.default_rng(3)
    nibbles = random.integers(0, 16, (8, 64), dtype=np.uint8)
    nibbles[:, ::32] = 7  # a six in every block fixes its scale
    packed, scales = fp4.pack_nibbles(nibbles), random.integers(60, 190, (8, 2), dtype=np.uint8)
    values = fp4.decode_fp4(packed, scales)
    made = sources.to_fp4(lambda a, b: values[a:b], 8, 64)
    assert np.array_equal(made.codes, packed)
    assert np.array_equal(made.scales, scales)


def test_one_signed_exact_zeros_are_balanced_and_signed_ones_are_kept() -> None:
    ones = np.zeros((64, 64))
    ones[::3] = 1.0
    made = sources.to_fp4(lambda a, b: ones[a:b], 64, 64)
    base = fp4.unpack_base(fp4.encode_base(made.codes))
    zeros = ones == 0
    assert np.count_nonzero(base[zeros] == 1) == np.count_nonzero(base[zeros] == 2)
    assert (base[~zeros] == 3).all()  # six times 2**-3 is nearest to one: the big class
    both = np.where(np.random.default_rng(4).random((64, 64)) < 0.5, 0.0, -0.0)
    kept = fp4.unpack_nibbles(sources.to_fp4(lambda a, b: both[a:b], 64, 64).codes)
    assert np.array_equal(kept == 8, np.signbit(both))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(poison: float) -> None:
    row = np.ones((1, 32))
    row[0, 3] = poison
    with pytest.raises(sources.NotFiniteError, match="rows 0"):
        sources.to_fp4(lambda a, b: row, 1, 32)
