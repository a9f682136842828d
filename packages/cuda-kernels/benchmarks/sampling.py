"""Benchmarks of sampling over a vocabulary of 248,320: greedy, plain, and filtered in the ways users ask for."""

import torch
from cuda_kernels.sampling import reference
from cuda_kernels.sampling.layout import SamplingRows
from cuda_kernels.sampling.op import sample_tokens
from registry import Benchmark, Work

VOCABULARY, IDS = 248_320, 248_077
COPIES = 64
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
OFF = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}

KINDS = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "top_k20-top_p0.95": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "top_p0.9": {"temperature": 1.0, "top_p": 0.9},
    "all": {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.05, **PENALTIES},
}


def build(kind: str, rows: int) -> Work:
    values = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **OFF, **KINDS[kind]}
    columns = {key: torch.tensor([value] * rows, device="cuda") for key, value in values.items()}
    parameters = SamplingRows(**columns)
    logits = torch.randn(COPIES, rows, VOCABULARY, device="cuda") * 3
    history = torch.zeros(rows, VOCABULARY, dtype=torch.int32, device="cuda")
    history[:, ::7] = 1
    index = torch.arange(rows, device="cuda")
    place = {"seeds": index + 1, "positions": index + 77, "slots": index}
    before = history.cpu()

    def expected() -> torch.Tensor:
        on_host = SamplingRows(**{key: column.cpu() for key, column in columns.items()})
        rest = (tensor.cpu() for tensor in place.values())
        return reference.sample_tokens(logits[0].cpu(), on_host, *rest, before, IDS)

    return Work(
        ours=lambda i: sample_tokens(logits[i], parameters, **place, history=history, vocab_size=IDS),
        expected=expected,
        bound=0.0,
        copies=COPIES,
        nbytes=logits[0].nbytes + (history.nbytes if "repetition_penalty" in KINDS[kind] else 0),
        competitors={"torch argmax": lambda i: logits[i, :, :IDS].argmax(-1)} if kind == "greedy" else {},
    )


BENCHMARKS = (
    Benchmark(
        name="sample_tokens",
        shapes={f"{kind}-B{rows}": {"kind": kind, "rows": rows} for kind in KINDS for rows in (1, 16)},
        build=build,
    ),
)
