"""Pieces of kernels that several ops share."""

import os

import triton
import triton.language as tl

# The interpreter computes bfloat16 on its bits, silently wrong, and truncates where a GPU rounds.
INTERPRET = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """float32 to `dtype`, rounded to nearest."""
    if INTERPRET and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        x = bits.to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def dot(a, b, acc):
    """``acc + a @ b`` in float32; float32 operands are not rounded to TF32."""
    if INTERPRET:
        acc = acc + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, input_precision="ieee")
    return acc


@triton.jit
def load_rows(pointer, offsets, wanted, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr):
    """Rows at `offsets`, 0 where not `wanted` (that may hold NaN or lie outside) and beyond `WIDTH`."""
    columns = tl.arange(0, BLOCK_D)[None, :]
    places = pointer + offsets[:, None] + columns
    if MASKED and WIDTH < BLOCK_D:
        rows = tl.load(places, mask=wanted[:, None] & (columns < WIDTH), other=0.0)
    elif MASKED:
        rows = tl.load(places, mask=wanted[:, None], other=0.0)
    elif WIDTH < BLOCK_D:
        rows = tl.load(places, mask=columns < WIDTH, other=0.0)
    else:
        rows = tl.load(places)
    return rows


@triton.jit
def fold(acc, peak, total, scores, value):
    """One step of the online softmax; `scores` in units of log 2, -inf where hidden."""
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # a row that has seen nothing yet would compute -inf - -inf
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(peak - base)
    total = total * fade + tl.sum(weights, 1)
    acc = dot(narrow(weights, value.dtype), value, acc * fade[:, None])
    return acc, new_peak, total


@triton.jit
def finish(acc, peak, total):
    """Output and natural log-sum-exp; 0 and -inf for a row that saw no key."""
    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    return acc / total[:, None], tl.where(empty, float("-inf"), (peak + tl.log2(total)) * LN_2)
