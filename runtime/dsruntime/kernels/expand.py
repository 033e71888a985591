"""Packed codes to values in registers, sixteen weights a word (Triton device functions).

The planes are those of `dsruntime.codec.layout`, read as they lie in the pack. A tile of words
[BM, BK] covers 16 BK weights of BM rows: word w of a base plane holds weights 16w..16w+15 of its
row, so do word w of a low plane, byte w of a high plane, and 64-bit word w of a plain plane. Weight
i of every word is then one [BM, BK] tile of values, and K is never gathered: the activations are
put into the same order once (`order`).

All arithmetic is on 32-bit words and fp32, in which every value here is exact; what is bit-exact in
the interpreter is so on the card. Values come out *doubled* and scales *halved*, so that a scale of
2**127 or 2**-127 and every code keep their exact product.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rotate(x, by: tl.constexpr):
    """Rotate left; one instruction on the card."""
    if by == 0:
        return x
    else:  # noqa: RET505  (Triton would compile what follows, too)
        return (x << by) | (x >> (32 - by))


@triton.jit
def half_scale(exponent):
    """e8m0 bytes -> 2**(b - 128) as fp32, exactly; 255 -> NaN."""
    b = exponent.to(tl.uint32)
    bits = tl.where(b > 1, (b - 1) << 23, (b + 1) << 21)
    return tl.where(b == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def base_fields(word):
    """Base codes rearranged for `base_value`.

    Weight i's sign goes to bit 2i + 1, and "is +-4" seven bits below: as far apart as the sign and
    the exponent bit that quadruples are in an fp32. So a rotation and one three-operand logic
    instruction make each value.
    """
    big = ~(word ^ (word >> 1)) & 0x55555555
    return (~word & 0xAAAAAAAA) | _rotate(big, 26)


@triton.jit
def base_value(fields, i: tl.constexpr):
    """Weight i of `base_fields`, doubled: +-2 or +-8."""
    bits = (_rotate(fields, 30 - 2 * i) & 0x81000000) | 0x40000000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _restore(pairs, codes):
    """Four digit pairs (a byte each) and their eight base codes (low nibbles) -> eight FP4 codes.

    13 p >> 6 divides a pair by five (exact to 24); a byte needs nine bits for it, so even and odd
    bytes are multiplied apart, the odd ones by 52 and without the shift.
    """
    fifth = (((pairs & 0x00FF00FF) * 13) >> 6) & 0x000F000F
    fifth = fifth | ((((pairs >> 8) & 0x00FF00FF) * 52) & 0x0F000F00)
    codes = (codes | (codes << 2)) & 0x33333333
    negative = ~(codes >> 1) & 0x11111111
    big = ~(codes ^ (codes >> 1)) & 0x11111111
    return pairs + fifth * 11 + big * 5 + negative * 8


@triton.jit
def _high_bits(high):
    """Bits 0, 2, 4, 6 -> bit 4 of bytes 0..3. The product's carries end on odd bits, unread."""
    return (((high & 0x55) * 0x41041) & 0x01010101) << 4


@triton.jit
def split_words(base, low, high):
    """Base word and remainders -> FP4 codes of pairs 0, 2, 4, 6 and of pairs 1, 3, 5, 7."""
    high = high.to(tl.uint32)
    even = _restore((low & 0x0F0F0F0F) | _high_bits(high), base & 0x0F0F0F0F)
    odd = _restore(((low >> 4) & 0x0F0F0F0F) | _high_bits(high >> 1), (base >> 4) & 0x0F0F0F0F)
    return even, odd


@triton.jit
def plain_words(codes):
    """64-bit words of FP4 codes -> the codes of weights 0..7 and of weights 8..15."""
    return codes.to(tl.uint32), (codes >> 32).to(tl.uint32)


@triton.jit
def fp4_value(first, second, i: tl.constexpr, split: tl.constexpr):
    """Weight i of `split_words` or `plain_words`, doubled.

    An e2m1 code moved to where an fp32 has exponent and mantissa is the value times 2**-126, its
    subnormals included.
    """
    if split:
        word = first if (i // 2) % 2 == 0 else second
        at: tl.constexpr = 8 * (i // 4) + 4 * (i % 2)
    else:
        word = first if i < 8 else second
        at: tl.constexpr = 4 * (i % 8)
    magnitude = (word << (22 - at)) if at < 22 else (word >> (at - 22))
    bits = (magnitude & 0x01C00000) | ((word << (28 - at)) & 0x80000000)
    return bits.to(tl.float32, bitcast=True) * 1.7014118346046923e38  # 2**127


@triton.jit
def four_base(fields, scale, group: tl.constexpr, rows: tl.constexpr, words: tl.constexpr):
    """Weights 4 group .. 4 group + 3 of every word, side by side: [rows, 4 words], with scale."""
    v0 = base_value(fields, 4 * group) * scale
    v1 = base_value(fields, 4 * group + 1) * scale
    v2 = base_value(fields, 4 * group + 2) * scale
    v3 = base_value(fields, 4 * group + 3) * scale
    return tl.join(tl.join(v0, v2), tl.join(v1, v3)).reshape(rows, 4 * words)


@triton.jit
def four_fp4(
    a, b, scale, group: tl.constexpr, split: tl.constexpr, rows: tl.constexpr, words: tl.constexpr
):
    """As `four_base`, from FP4 codes."""
    v0 = fp4_value(a, b, 4 * group, split) * scale
    v1 = fp4_value(a, b, 4 * group + 1, split) * scale
    v2 = fp4_value(a, b, 4 * group + 2, split) * scale
    v3 = fp4_value(a, b, 4 * group + 3, split) * scale
    return tl.join(tl.join(v0, v2), tl.join(v1, v3)).reshape(rows, 4 * words)
