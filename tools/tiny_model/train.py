"""Train the tiny model on one GPU: ``python -m tools.tiny_model.train OUTPUT --minutes 8``.

Writes ``model.safetensors`` with its configuration, ``log.json`` (options, environment, loss curve, evaluation) and
``loss.png``. Data are drawn while training, by worker processes, from consecutive seeds. The learning rates fall to
zero at the last step or at the time limit, whichever is first, so that a slower machine finishes a model, too.
"""

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from qwen35_moe.chat import ChatTemplate
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tools.tiny_model.architecture import build, save
from tools.tiny_model.corpus import END_OF_TEXT, TEMPLATE_FILE, row
from tools.tiny_model.evaluate import evaluate
from tools.tiny_model.forward import forward
from tools.tiny_model.muon import Muon
from tools.tiny_model.plot import plot_loss


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What a run is made of."""

    minutes: float = 8.0
    steps: int = 24_000
    rows: int = 64
    length: int = 512
    learning_rate: float = 3e-3
    matrix_rate: float = 0.02
    warmup: int = 200
    decay: float = 0.5
    weight_decay: float = 0.01
    balance: float = 0.001
    seed: int = 0
    workers: int = max(1, (os.cpu_count() or 2) - 2)
    log_every: int = 100


class Batches(IterableDataset[Tensor]):
    """Batches of rows; with several workers each makes every n-th batch, so that their order is always the same."""

    def __init__(self, options: TrainingOptions) -> None:
        self.options = options

    def __iter__(self) -> Iterator[Tensor]:
        tokenizer = Tokenizer.from_file(str(TEMPLATE_FILE.with_name("tokenizer.json")))
        template = ChatTemplate.from_file(TEMPLATE_FILE)
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        rows = self.options.rows
        for batch in range(first, self.options.steps, step):
            numbers = range(batch * rows, (batch + 1) * rows)
            yield torch.tensor(
                [row(number, self.options.length, tokenizer, template) for number in numbers],
                dtype=torch.int16,
            )


def optimizers_of(model: nn.Module, options: TrainingOptions) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of the layers; AdamW for the embedding, routers, convolutions and vectors.

    Rates are tensors, zero at first, so that a captured step reads them anew; `set_rates` fills them.
    """
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        is_table = name.endswith(
            ("embed_tokens.weight", "lm_head.weight", "mlp.gate.weight", "expert_gate.weight", "conv1d.weight")
        )
        (others if parameter.ndim < 2 or is_table else matrices).append(parameter)
    device, on_gpu = matrices[0].device, matrices[0].is_cuda
    adam = {"betas": (0.9, 0.98), "eps": 1e-9, "fused": on_gpu, "capturable": on_gpu}
    return (
        Muon(matrices, torch.zeros((), device=device), weight_decay=options.weight_decay),
        torch.optim.AdamW(others, lr=torch.zeros((), device=device), weight_decay=0.0, **adam),
    )


def set_rates(optimizers: Sequence[torch.optim.Optimizer], options: TrainingOptions, factor: float) -> None:
    """Fill the rates of `optimizers_of` with those of the options times a factor."""
    for optimizer, rate in zip(optimizers, (options.matrix_rate, options.learning_rate), strict=True):
        for group in optimizer.param_groups:
            group["lr"].fill_(rate * factor)


def schedule(options: TrainingOptions, step: int, progress: float) -> float:
    """Return the factor of the rates: up in the warm-up, 1, and in the last `decay` of the run down to 0, all linear.

    The rate stays high for long since look-ups are learned late and at once, and never from low rates.
    """
    return min(1.0, (step + 1) / options.warmup, max(0.0, 1.0 - progress) / options.decay)


def loss_of(model: nn.Module, tokens: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """Return mean next-token loss and the load-balancing loss; an end mark begins a new document."""
    logits, balance = forward(model, tokens, (tokens == end).cumsum(1))
    # The last position has nothing to predict.
    targets = torch.cat([tokens[:, 1:], torch.full_like(tokens[:, :1], -100)], dim=1)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten()), balance


class Step:
    """One step of training on a batch of fixed shape: loss, gradients, update.

    On a GPU it is captured as a CUDA graph: launching its kernels one by one takes longer than they run.
    """

    def __init__(self, model: nn.Module, options: TrainingOptions, end: int) -> None:
        self._model, self._options, self._end = model, options, end
        device = model.lm_head.weight.device
        self._tokens = torch.zeros(options.rows, options.length, dtype=torch.int64, device=device)
        self._optimizers = optimizers_of(model, options)
        self._graph = self._capture() if device.type == "cuda" else None

    def __call__(self, batch: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """Update the model at the options' rates times `factor`; return the losses, which the next call overwrites."""
        self._tokens.copy_(batch, non_blocking=True)
        set_rates(self._optimizers, self._options, factor)
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()
        return self._losses

    def _run(self) -> None:
        self._model.zero_grad(set_to_none=True)
        loss, balance = loss_of(self._model, self._tokens, self._end)
        (loss + self._options.balance * balance).backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
        self._losses = loss.detach(), balance.detach()

    def _capture(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # at rate 0, so that nothing moves
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                for moment in state.values():
                    moment.zero_()
        return graph


def train(options: TrainingOptions, deadline: float, device: torch.device) -> tuple[nn.Module, list[dict[str, float]]]:
    """Return the trained float32 model and its loss curve; stops at the deadline (``time.monotonic``)."""
    torch.set_float32_matmul_precision("high")
    tokenizer = Tokenizer.from_file(str(TEMPLATE_FILE.with_name("tokenizer.json")))
    model = build(tokenizer, options.seed).to(device)
    loader = DataLoader(Batches(options), batch_size=None, num_workers=options.workers,
                        prefetch_factor=4 if options.workers else None, pin_memory=device.type == "cuda")  # fmt: skip
    batches = iter(loader)  # starts the workers
    update = Step(model, options, tokenizer.token_to_id(END_OF_TEXT))
    begin = time.monotonic()
    curve: list[dict[str, float]] = []
    for step, batch in enumerate(batches):
        progress = max(step / options.steps, (time.monotonic() - begin) / (deadline - begin))
        if progress >= 1.0:
            break
        factor = schedule(options, step, progress)
        loss, balance = update(batch, factor)
        if step % options.log_every == 0 or step == options.steps - 1:
            seconds = time.monotonic() - begin
            curve.append(
                {"step": step, "loss": loss.item(), "balance": balance.item(), "rate": factor, "seconds": seconds}
            )
            print(f"step {step:5d}  loss {loss.item():.4f}  balance {balance.item():.3f}  {seconds:.1f} s", flush=True)
    return model, curve


def environment(device: torch.device) -> dict[str, Any]:
    """Return what a figure should be quoted with."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def run(options: TrainingOptions, output: Path, samples: int) -> dict[str, Any]:
    """Train, save, evaluate on ``samples`` texts of each kind; return what ``log.json`` holds."""
    deadline = time.monotonic() + 60 * options.minutes
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    output.mkdir(parents=True, exist_ok=True)
    model, curve = train(options, deadline, device)
    log = {"options": dataclasses.asdict(options), "environment": environment(device), "curve": curve}
    save(model, output)
    model.float()  # of the bfloat16 values that were saved
    (output / "log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(TEMPLATE_FILE.with_name("tokenizer.json")))
    log["evaluation"] = evaluate(model, tokenizer, ChatTemplate.from_file(TEMPLATE_FILE), samples)
    (output / "log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
    plot_loss(log, output / "loss.png")
    return log


def main() -> None:
    """Parse the command line, train, and print the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    for field in dataclasses.fields(TrainingOptions):
        flag = "--" + field.name.replace("_", "-")
        if field.type is bool:
            parser.add_argument(flag, action="store_true", default=field.default)
        else:
            parser.add_argument(flag, type=type(field.default), default=field.default)
    parser.add_argument("--samples", type=int, default=200)
    arguments = vars(parser.parse_args())
    output, samples = arguments.pop("output"), arguments.pop("samples")
    report = run(TrainingOptions(**arguments), output, samples)["evaluation"]
    print(json.dumps(report["held_out"], indent=1))
    stories, answers = report["stories"], report["answers"]
    print(f"stories {stories['passed']}/{stories['of']}, answers {answers['right']}/{answers['of']} {answers['forms']}")


if __name__ == "__main__":
    main()
