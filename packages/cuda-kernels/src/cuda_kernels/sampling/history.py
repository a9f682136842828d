"""Kernel that marks the tokens of a prompt in the history of its slot."""

# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def mark_prompt_kernel(
    p_tokens,
    p_start,
    p_slot,
    p_history,
    tokens,
    slots,
    vocabulary,
    BLOCK_V: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Clear (where start is 0) and mark BLOCK_V entries of the slot's row; program (entries).

    Each program looks at all tokens and marks its own, so that clearing and marking need no second launch.
    """
    slot = tl.load(p_slot)
    if (slot < 0) | (slot >= slots):
        return
    first = tl.program_id(0) * BLOCK_V
    last = tl.minimum(first + BLOCK_V, vocabulary)
    p_row = p_history + slot * vocabulary
    if tl.load(p_start) == 0:
        o_v = first + tl.arange(0, BLOCK_V)
        tl.store(p_row + o_v, tl.zeros((BLOCK_V,), tl.int32), mask=o_v < last)
        tl.debug_barrier()
    for block in range(0, tokens, BLOCK_T):
        o_t = block + tl.arange(0, BLOCK_T)
        token = tl.load(p_tokens + o_t, mask=o_t < tokens, other=-1)
        mine = (token >= first) & (token < last)
        tl.atomic_or(p_row + tl.where(mine, token, first), 1, mask=mine)
