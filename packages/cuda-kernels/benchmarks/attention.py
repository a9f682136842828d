"""Benchmarks of attention at the shapes of a 35B model (16 query, 2 key-value heads of 256), norm and rotary inside."""

import torch
from cuda_kernels.attention import reference
from cuda_kernels.attention.layout import HeadTransform, KeyValueCache
from cuda_kernels.attention.op import attention_decode, attention_decode_int8, attention_prefill
from cuda_kernels.testing import bound, random_tensor
from registry import Benchmark, Work
from timing import copies_past_l2
from torch.nn.functional import scaled_dot_product_attention

QUERIES, KV_HEADS, SIZE, ROTARY = 16, 2, 256, 64
COLUMNS = (2 * QUERIES + 2 * KV_HEADS) * SIZE
GROUP = 128


def _cuda(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def _heads(context: int) -> HeadTransform:
    angles = random_tensor(context, ROTARY // 2, device="cuda")
    return HeadTransform(
        q_norm=_cuda(SIZE) * 0.3, k_norm=_cuda(SIZE) * 0.3, rope=torch.cat((angles.cos(), angles.sin()), 1)
    )


def _cache(context: int) -> KeyValueCache:
    shape = (1, KV_HEADS, context, SIZE)
    return KeyValueCache(keys=_cuda(*shape), values=_cuda(*shape))


def _torch_attention(qkv: torch.Tensor, heads: HeadTransform, cache: KeyValueCache, *, first: int) -> torch.Tensor:
    """Return the same in eager torch with its own attention kernel, for one row at `first`, or many from 0 on."""
    last = first + qkv.shape[0]
    rope = heads.rope[first:last]
    q, gate, k, v = reference.split(qkv, heads, cache, rope)
    cache.keys[0, :, first:last] = k.transpose(0, 1)
    cache.values[0, :, first:last] = v.transpose(0, 1)
    query = q.bfloat16().transpose(0, 1)[None]
    keys, values = cache.keys[:, :, :last], cache.values[:, :, :last]
    out = scaled_dot_product_attention(query, keys, values, is_causal=first == 0, enable_gqa=True)
    return (out[0].transpose(0, 1) * torch.sigmoid(gate)).flatten(1).bfloat16()


def build_decode(keys: int, int8: bool) -> Work:
    """The caches rotate past the L2; the projection stays in it, as the product before it leaves it there."""
    context = max(4096, keys)
    nbytes = 2 * KV_HEADS * keys * SIZE * 2
    copies = copies_past_l2(nbytes)
    qkv, heads, caches = _cuda(1, COLUMNS), _heads(context), [_cache(context) for _ in range(copies)]
    place = {"positions": torch.tensor([keys - 1], device="cuda"), "slots": torch.tensor([0], device="cuda")}
    fresh = KeyValueCache(keys=caches[0].keys.clone(), values=caches[0].values.clone())

    def ours(i: int) -> object:
        if int8:
            return attention_decode_int8(qkv, heads, caches[i], **place, group_size=GROUP)
        return attention_decode(qkv, heads, caches[i], **place)

    def expected() -> torch.Tensor:
        arguments = (qkv, heads, fresh, *place.values())
        if int8:
            return reference.attention_decode_int8(*arguments, GROUP)[0]
        return reference.attention_decode(*arguments)

    def torch_eager(i: int) -> torch.Tensor:
        return _torch_attention(qkv, heads, caches[i], first=keys - 1)

    return Work(
        ours=ours,
        expected=expected,
        bound=bound("int8" if int8 else torch.bfloat16),
        copies=copies,
        nbytes=nbytes + qkv.nbytes,
        flops=4.0 * keys * QUERIES * SIZE,
        competitors={} if int8 else {"torch eager, sdpa": torch_eager},
    )


def build_prefill(tokens: int, start: int) -> Work:
    context = max(4096, start + tokens)
    qkv, heads, cache = _cuda(tokens, COLUMNS), _heads(context), _cache(context)
    place = (torch.tensor([start], device="cuda"), torch.tensor([0], device="cuda"))
    fresh = KeyValueCache(keys=cache.keys.clone(), values=cache.values.clone())
    return Work(
        ours=lambda i: attention_prefill(qkv, heads, cache, start=place[0], slot=place[1]),
        expected=lambda: reference.attention_prefill(qkv, heads, fresh, *place),
        bound=bound(torch.bfloat16),
        copies=1,
        nbytes=qkv.nbytes + 2 * tokens * QUERIES * SIZE + 4 * KV_HEADS * SIZE * (start + tokens),
        # A row multiplies with the keys up to its own alone.
        flops=4.0 * QUERIES * SIZE * (tokens * start + tokens * (tokens + 1) / 2),
        competitors={"torch eager, sdpa": lambda i: _torch_attention(qkv, heads, cache, first=0)} if start == 0 else {},
    )


KEYS = (1, 128, 1341, 4096, 32_768)
CHUNKS = {(tokens, 0) for tokens in (16, 128, 512, 1341, 4096, 8192)} | {(16, 4080), (1024, 7168)}

BENCHMARKS = (
    Benchmark(
        name="attention_decode",
        shapes={f"L{keys}": {"keys": keys, "int8": False} for keys in KEYS},
        build=build_decode,
    ),
    Benchmark(
        name="attention_decode_int8",
        shapes={f"L{keys}": {"keys": keys, "int8": True} for keys in KEYS},
        build=build_decode,
    ),
    Benchmark(
        name="attention_prefill",
        shapes={f"T{tokens}-start{start}": {"tokens": tokens, "start": start} for tokens, start in sorted(CHUNKS)},
        build=build_prefill,
    ),
)
