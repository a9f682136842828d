"""The steps of random graphs: each adds an operator or two, a view or a write.

Every result is the same to the last bit on any device and in any memory order: elements are rounded as IEEE 754 says,
one operation at a time, and sums are of whole numbers. So programs are compared without a tolerance, which the
comparisons within `sort` and `sign` would turn into results far apart.
"""

import torch

from export_passes.testing.graph_builder import SHAPES, GraphBuilder, Step

aten = torch.ops.aten


def _unary(b: GraphBuilder) -> None:
    targets = (aten.neg.default, aten.relu.default, aten.sign.default, aten.abs.default, aten.clone.default)
    b.add(b.rng.choice(targets), b.pick())


def _binary(b: GraphBuilder) -> None:
    one = b.pick()
    b.add(b.rng.choice((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.maximum.default)), one, b.like(one))


def _scalar(b: GraphBuilder) -> None:
    b.add(b.rng.choice((aten.add.Tensor, aten.mul.Tensor)), b.pick(), b.integer(-2, 2))


def _halve(b: GraphBuilder) -> None:
    b.add(aten.div.Tensor, b.pick(), 2)  # of integers: floats


def _broadcast(b: GraphBuilder) -> None:
    one = b.pick()
    b.add(aten.sign.default, one)  # of signs: the order in which other numbers are added shows in the sum
    b.add(aten.sum.dim_IntList, b.values[-1], [0], True)
    b.add(aten.sub.Tensor, one, b.values[-1])


def _product(b: GraphBuilder) -> None:
    one = b.pick(2)
    if one.meta["val"].dim() == 2 and one.meta["val"].dtype == torch.float32:
        # Of signs: a product rounds differently for operands in other memory orders, and copies change the order.
        b.add(aten.sign.default, b.like(one))
        b.add(aten.t.default, b.values[-1])
        b.add(aten.sign.default, one)
        b.add(aten.mm.default, b.values[-1], b.values[-2])


def _concatenate(b: GraphBuilder) -> None:
    one = b.pick()
    target = b.rng.choice((aten.cat.default, aten.stack.default))
    b.add(target, [one, b.like(one), one], b.integer(0, one.meta["val"].dim() - 1))


def _several(b: GraphBuilder) -> None:
    one = b.pick()
    if one.meta["val"].dtype == torch.float32:
        dim = b.integer(0, one.meta["val"].dim() - 1)
        if b.chance(0.5):
            b.add(aten.aminmax.default, one, dim=dim, keepdim=True)
        else:
            b.add(aten.sort.stable, one, stable=True, dim=dim)


def _convert(b: GraphBuilder) -> None:
    dtype = b.rng.choice((torch.bfloat16, torch.float32, torch.float64))
    one = b.pick()
    same = one.meta["val"].dtype == dtype
    b.add(aten.to.dtype, one, dtype, writable=not same or one not in b.unwritable)


def _new(b: GraphBuilder) -> None:
    b.add(aten.full.default, list(b.rng.choice(SHAPES)), 0.5, dtype=torch.float32, device=torch.device("cpu"))


def _transpose(b: GraphBuilder) -> None:
    one = b.pick()
    last = one.meta["val"].dim() - 1
    b.add(aten.transpose.int, one, 0, b.integer(0, last))


def _part(b: GraphBuilder) -> None:
    one = b.pick()
    size = one.meta["val"].shape[0]
    if size > 1:
        start = b.integer(0, size - 1)
        b.add(aten.slice.Tensor, one, 0, start, b.integer(start + 1, size), b.integer(1, 2))


def _row(b: GraphBuilder) -> None:
    one = b.pick()
    if one.meta["val"].dim() > 1:
        dim = b.integer(0, one.meta["val"].dim() - 1)
        b.add(aten.select.int, one, dim, b.integer(-one.meta["val"].shape[dim], one.meta["val"].shape[dim] - 1))


def _flatten(b: GraphBuilder) -> None:
    one = b.pick()
    b.add(aten.reshape.default, one, [-1], writable=one not in b.unwritable)


def _widen(b: GraphBuilder) -> None:
    one = b.pick()
    if one.meta["val"].dim() < 3:
        b.add(aten.unsqueeze.default, one, 0)
        b.add(aten.expand.default, b.values[-1], [2, *one.meta["val"].shape], writable=False)


def _split(b: GraphBuilder) -> None:
    one = b.pick()
    b.add(aten.chunk.default, one, 2, b.integer(0, one.meta["val"].dim() - 1))


def _write(b: GraphBuilder) -> None:
    one = b.writable()
    if one is None:
        return
    kind = b.integer(0, 3)
    if kind == 0:
        b.add(aten.add_.Tensor, one, b.integer(1, 3))
    elif kind in (1, 2):
        # A source of its own: overlap of the two would be undefined.
        b.add(aten.mul.Tensor, b.like(one), 2)
        b.add(aten.mul_.Tensor if kind == 1 else aten.copy_.default, one, b.values[-1])
    else:
        b.add(aten.zero_.default, one)


STEPS: tuple[Step, ...] = (
    _unary, _binary, _binary, _scalar, _halve, _broadcast, _product, _concatenate, _several, _convert, _new, _transpose,
    _part, _row, _flatten, _widen, _split, _write, _write, _write,
)  # fmt: skip
