"""The canary's number formats keep every bit they promise to keep."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the engine's environment")

from canary import formats  # noqa: E402

seeds = st.integers(0, 2**31)
scales = st.integers(-40, 40)


def random_matrix(seed: int, exponent: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * 2.0**exponent


@settings(max_examples=40, deadline=None)
@given(seed=seeds, exponent=scales, rows=st.integers(1, 5), blocks=st.integers(1, 4))
def test_fp4_codes_mean_the_rounded_values(
    seed: int, exponent: int, rows: int, blocks: int
) -> None:
    weight = random_matrix(seed, exponent, rows, 32 * blocks)
    codes, scale = formats.fp4_encode(weight)
    assert (codes.dtype, scale.dtype) == (torch.int8, torch.float8_e8m0fnu)
    assert codes.shape == (rows, 16 * blocks)
    assert scale.shape == (rows, blocks)
    assert torch.equal(formats.fp4_decode(codes, scale), formats.fp4_round(weight))


@settings(max_examples=40, deadline=None)
@given(seed=seeds, exponent=scales)
def test_quantizing_again_changes_no_value(seed: int, exponent: int) -> None:
    weight = random_matrix(seed, exponent, 130, 160)
    for rounding in (formats.fp4_round, formats.fp8_round, formats.two_bit_round):
        once = rounding(weight)
        assert torch.equal(rounding(once), once) or rounding is formats.two_bit_round
    assert torch.equal(formats.fp8_decode(*formats.fp8_encode(weight)), formats.fp8_round(weight))


@settings(max_examples=40, deadline=None)
@given(seed=seeds, exponent=scales)
def test_no_other_storable_value_is_nearer(seed: int, exponent: int) -> None:
    weight = random_matrix(seed, exponent, 2, 32)
    _, scale = formats.fp4_encode(weight)
    unit = torch.ldexp(torch.ones(2), scale.view(torch.uint8)[:, 0].int() - 127)[:, None]
    grid = torch.tensor([sign * value for sign in (1, -1) for value in formats.E2M1])
    nearest = (weight[..., None] - grid * unit[..., None]).abs().amin(dim=-1)
    assert torch.equal((weight - formats.fp4_round(weight)).abs(), nearest)


def test_every_fp4_byte_decodes_low_nibble_first() -> None:
    one = torch.tensor([[127]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    values = [*formats.E2M1, *(-value for value in formats.E2M1)]
    for low, high in itertools.product(range(16), repeat=2):
        codes = torch.full((1, 16), low | high << 4, dtype=torch.uint8)
        decoded = formats.fp4_decode(codes, one)
        assert decoded[0, :2].tolist() == [values[low], values[high]]


@pytest.mark.parametrize(("value", "expected"), [(0.25, 0.0), (0.75, 1.0), (2.5, 2.0), (5.0, 4.0)])
def test_ties_go_to_the_even_code(value: float, expected: float) -> None:
    block = torch.zeros(1, 32)
    block[0, 0], block[0, 1] = 6.0, value
    assert formats.fp4_round(block)[0, 1] == expected


@pytest.mark.parametrize(("amax", "exponent"), [(448.0, 0), (449.0, 1), (224.0, -1), (225.0, 0)])
def test_a_scale_is_the_smallest_that_fits(amax: float, exponent: int) -> None:
    assert formats.scale_exponents(torch.tensor(amax), formats.E4M3_MAX).item() == exponent


def test_an_all_zero_block_stays_zero() -> None:
    zeros = torch.zeros(128, 128)
    assert torch.equal(formats.fp4_round(zeros), zeros)
    assert torch.equal(formats.fp8_round(zeros), zeros)


def test_the_two_bit_code_keeps_signs_and_scales() -> None:
    block = torch.zeros(1, 32)
    block[0, :8] = torch.tensor([6.0, 4.0, 3.0, 2.0, 0.5, -0.0, -1.5, -6.0])
    coded = formats.two_bit_round(block)[0]
    assert coded[:8].tolist() == [4.0, 4.0, 4.0, 1.0, 1.0, -1.0, -1.0, -4.0]
    assert coded[8:].tolist() == [1.0] * 24


def test_rows_that_no_block_divides_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        formats.fp4_encode(torch.zeros(2, 40))
