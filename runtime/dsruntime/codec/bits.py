"""The bit formulas of the codec, sixteen weights at a time, and the two ways they run.

A 64-bit word holds sixteen FP4 codes (nibbles). Every formula below is ordinary integer arithmetic
on such words, so the same function runs on one word inside a compiled loop (numba, which vLLM
brings along, see `loops`) and on a whole array of words in NumPy where numba is missing.

Nibble (e2m1): bit 3 is the sign, bits 2..0 the magnitude code: 0 .5 1 1.5 2 3 4 6. Magnitude codes
0..4 form the *small* class, 5..7 the *big* class. With s the sign and g "is big":

    base code = (not s) << 1 | (g xor s)          # 0..3 = -4, -1, +1, +4
    remainder = magnitude code - 5 g              # 0..4 in the small class, 0..2 in the big one

Two neighbouring remainders (even k first) make one digit pair d0 + 5 d1 <= 24: five bits, of which
four go to the *low* plane and one to the *high* plane. 2.5 bits a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

_F = TypeVar("_F", bound=Callable[..., Any])

try:
    from numba.extending import register_jitable  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError:
    register_jitable = None


def formula(function: _F) -> _F:
    """Let compiled loops use the function too; called from Python it stays an ordinary one."""
    return function if register_jitable is None else cast(_F, register_jitable(function))


_U = np.uint64
_NIBBLES = _U(0x1111111111111111)
_LOW_NIBBLES = _U(0x0F0F0F0F0F0F0F0F)
_BYTES = _U(0x0101010101010101)
_B2 = _U(0x00FF00FF00FF00FF)
_B4 = _U(0x0000FFFF0000FFFF)
_B8 = _U(0x00000000FFFFFFFF)
_U1, _U2, _U3, _U4, _U5 = _U(1), _U(2), _U(3), _U(4), _U(5)
_U7, _U8, _U13, _U14, _U16, _U28 = _U(7), _U(8), _U(13), _U(14), _U(16), _U(28)
_PAIRS = _U(0x3333333333333333)


@formula
def _squeeze_bytes(x: Any) -> Any:
    """Bytes 0, 2, 4, 6 of the word, brought together in its low half."""
    x = x & _B2
    x = (x | (x >> _U8)) & _B4
    return (x | (x >> _U16)) & _B8


@formula
def _spread_bytes(x: Any) -> Any:
    """The reverse of `_squeeze_bytes`: four bytes to every second byte."""
    x = (x | (x << _U16)) & _B4
    return (x | (x << _U8)) & _B2


@formula
def base_of_word(x: Any) -> Any:
    """Sixteen FP4 codes -> sixteen 2-bit base codes (32 bits, first weight lowest)."""
    sign = (x >> _U3) & _NIBBLES
    big = (x >> _U2) & (x | (x >> _U1)) & _NIBBLES
    codes = ((sign ^ _NIBBLES) << _U1) | (big ^ sign)
    codes = (codes | (codes >> _U2)) & _LOW_NIBBLES
    return _squeeze_bytes(codes | (codes >> _U4))


@formula
def pairs_of_word(x: Any) -> Any:
    """Sixteen FP4 codes -> eight digit pairs, one a byte (0..24)."""
    big = (x >> _U2) & (x | (x >> _U1)) & _NIBBLES
    digits = (x & (_NIBBLES * _U7)) - big * _U5
    return (digits & _LOW_NIBBLES) + ((digits >> _U4) & _LOW_NIBBLES) * _U5


@formula
def low_of_pairs(pairs: Any) -> Any:
    """Low four bits of eight pairs, two a byte (32 bits)."""
    low = pairs & _LOW_NIBBLES
    return _squeeze_bytes(low | (low >> _U4))


@formula
def high_of_pairs(pairs: Any) -> Any:
    """High bit of eight pairs as one byte, first pair lowest."""
    high = (pairs >> _U4) & _BYTES
    high = high | (high >> _U7)
    high = high | (high >> _U14)
    return (high | (high >> _U28)) & _U(0xFF)


@formula
def word_of_split(base: Any, low: Any, high: Any) -> Any:
    """Base codes (32 bits), low plane (32 bits) and high plane (8 bits) -> sixteen FP4 codes."""
    top = (high | (high << _U28)) & _U(0x0000000F0000000F)
    top = (top | (top << _U14)) & _U(0x0003000300030003)
    top = (top | (top << _U7)) & _BYTES
    pair = _spread_bytes(low)
    pair = ((pair | (pair << _U4)) & _LOW_NIBBLES) | (top << _U4)
    d1 = _fifth(pair)
    magnitude = (pair - d1 * _U5) | (d1 << _U4)
    codes = _spread_bytes(base)
    codes = (codes | (codes << _U4)) & _LOW_NIBBLES
    codes = (codes | (codes << _U2)) & _PAIRS
    sign = ((codes >> _U1) & _NIBBLES) ^ _NIBBLES
    big = (codes & _NIBBLES) ^ sign
    return (magnitude + big * _U5) | (sign << _U3)


@formula
def _fifth(pair: Any) -> Any:
    """Each byte (0..24) divided by five: 13 n >> 6 is exact up to 24, and fits nine bits."""
    even = ((pair & _B2) * _U13 >> _U(6)) & (_B2 & _LOW_NIBBLES)
    odd = (((pair >> _U8) & _B2) * _U13 >> _U(6)) & (_B2 & _LOW_NIBBLES)
    return even | (odd << _U8)
