"""How good the tiny model is: held-out loss against the generator's entropy, sampled stories, greedy answers.

Run as ``python -m tools.tiny_model.evaluate CHECKPOINT --output RESULTS.json``. Everything is computed with training's
forward pass; no cache is kept, since texts are short.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from qwen35_moe.chat import ChatTemplate
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import Qwen3_5MoeForCausalLM

from tools.tiny_model.conversations import FORMS, assemble
from tools.tiny_model.corpus import END_OF_TEXT, HELD_OUT_SEED, draw_document
from tools.tiny_model.facts import TOOLS
from tools.tiny_model.forward import CHUNK, forward
from tools.tiny_model.grammar import Draw
from tools.tiny_model.stories import STORIES

STORY_PROMPT = "Once upon a time"
GRADED = tuple(form for form in FORMS if form != "story")
"""Forms of question whose answer is determined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A prompt and the only right completion."""

    form: str
    prompt: str
    expected: str


def _padded(rows: Sequence[Sequence[int]], room: int, device: torch.device) -> Tensor:
    """Return rows as one tensor, filled up behind to a multiple of the chunk with ``room`` to grow."""
    length = -(-(max(len(row) for row in rows) + room) // CHUNK) * CHUNK
    tokens = torch.zeros(len(rows), length, dtype=torch.int64)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row)
    return tokens.to(device)


@torch.no_grad()
def held_out_loss(model: nn.Module, tokenizer: Tokenizer, template: ChatTemplate, *, count: int) -> dict[str, Any]:
    """Return mean loss and entropy bound in nats a token over held-out documents, each behind an end mark."""
    device = model.lm_head.weight.device
    end = tokenizer.token_to_id(END_OF_TEXT)
    totals: Counter[str] = Counter()
    documents = [draw_document(HELD_OUT_SEED + index, template) for index in range(count)]
    rows = [[end, *tokenizer.encode(document.text).ids, end] for document in documents]
    order = sorted(range(count), key=lambda index: len(rows[index]))
    for start in range(0, count, 50):
        batch = order[start : start + 50]
        tokens = _padded([rows[index] for index in batch], 0, device)
        losses = F.cross_entropy(
            forward(model, tokens)[0][:, :-1].float().transpose(1, 2), tokens[:, 1:], reduction="none"
        )
        for index, row_losses in zip(batch, losses.double().cpu(), strict=True):
            kind, tokens_count = documents[index].kind, len(rows[index]) - 1
            totals[f"{kind}.loss"] += row_losses[:tokens_count].sum().item()
            totals[f"{kind}.nats"] += documents[index].nats
            totals[f"{kind}.tokens"] += tokens_count
    report: dict[str, Any] = {"documents": count}
    kinds = {"story": ("story",), "conversation": ("conversation",), "all": ("story", "conversation")}
    for kind, parts in kinds.items():
        loss, nats, tokens_count = (
            sum(totals[f"{part}.{what}"] for part in parts) for what in ("loss", "nats", "tokens")
        )
        report[kind] = {
            "tokens": tokens_count,
            "loss": loss / tokens_count,
            "entropy": nats / tokens_count,
            "excess": loss / nats - 1,
        }
    return report


@torch.no_grad()
def complete(
    model: nn.Module, tokenizer: Tokenizer, prompts: Sequence[str], *, temperature: float, seed: int, room: int = 256
) -> list[str]:
    """Return the completions up to an end mark or ``room`` tokens; temperature 0 is greedy."""
    device = model.lm_head.weight.device
    rows = [tokenizer.encode(prompt).ids for prompt in prompts]
    tokens = _padded(rows, room, device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    ends = torch.tensor([tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id("<|im_end|>")], device=device)
    done = torch.zeros(len(rows), dtype=torch.bool, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    index = torch.arange(len(rows), device=device)
    for _ in range(room):
        live = -(-int(lengths.max()) // CHUNK) * CHUNK
        logits = forward(model, tokens[:, :live])[0][index, lengths - 1].float()
        chosen = (
            torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator).squeeze(1)
            if temperature
            else logits.argmax(-1)
        )
        done |= torch.isin(chosen, ends)
        if bool(done.all()):
            break
        tokens[index[~done], lengths[~done]] = chosen[~done]
        lengths += (~done).long()
    return [
        tokenizer.decode(tokens[i, len(row) : int(lengths[i])].tolist(), skip_special_tokens=False)
        for i, row in enumerate(rows)
    ]


def check_stories(model: nn.Module, tokenizer: Tokenizer, *, count: int, seed: int = 1) -> dict[str, Any]:
    """Sample stories at temperature 0.8 and have the grammar parse them."""
    completions = complete(model, tokenizer, [STORY_PROMPT] * count, temperature=0.8, seed=seed)
    stories = [STORY_PROMPT + completion for completion in completions]
    failed = [story for story in stories if not STORIES.derivations(story)]
    failures = [{"story": story, "broken_behind": story[: STORIES.longest_prefix(story)][-60:]} for story in failed]
    return {"of": count, "passed": count - len(failed), "distinct": len(set(stories)), "examples": stories[:5],
            "failures": failures}  # fmt: skip


def answer_cases(template: ChatTemplate, *, count: int, seed: int) -> list[Case]:
    """Return questions of every graded form in turn, thinking or not; of a tool call, the call or what follows it."""
    cases = []
    for index in range(count):
        form = GRADED[index % len(GRADED)]
        exchange = FORMS[form](Draw(random.Random(seed + index)))
        tools = TOOLS if exchange.messages else ()
        conversation = assemble([exchange], tools=tools, thinking=index // len(GRADED) % 2 == 0)
        answers = [i for i, message in enumerate(conversation.messages) if message["role"] == "assistant"]
        last = answers[index // len(GRADED) // 2 % len(answers)]
        rendered = {"tools": tools, "enable_thinking": conversation.thinking}
        prompt = template.render(conversation.messages[:last], **rendered)
        whole = template.render(conversation.messages[: last + 1], add_generation_prompt=False, **rendered)
        expected = whole.rpartition("</think>")[2].removesuffix("<|im_end|>\n").strip()
        cases.append(Case(form=form, prompt=prompt, expected=expected))
    return cases


def check_answers(
    model: nn.Module, tokenizer: Tokenizer, template: ChatTemplate, *, count: int, seed: int = HELD_OUT_SEED
) -> dict[str, Any]:
    """Answer questions greedily; right is only what equals the known answer, letter by letter, reasoning aside."""
    cases = answer_cases(template, count=count, seed=seed)
    completions = complete(model, tokenizer, [case.prompt for case in cases], temperature=0.0, seed=0, room=128)
    right: Counter[str] = Counter()
    failures = []
    for case, completion in zip(cases, completions, strict=True):
        answer = completion.rpartition("</think>")[2].strip()
        right[case.form] += answer == case.expected
        if answer != case.expected:
            failures.append({"prompt": case.prompt, "expected": case.expected, "given": completion})
    total = Counter(case.form for case in cases)
    return {"of": count, "right": right.total(), "forms": {form: f"{right[form]}/{total[form]}" for form in total},
            "failures": failures}  # fmt: skip


def evaluate(model: nn.Module, tokenizer: Tokenizer, template: ChatTemplate, samples: int = 200) -> dict[str, Any]:
    """Return all three reports, over this many stories and answers and five times as many documents."""
    model.eval()
    return {
        "held_out": held_out_loss(model, tokenizer, template, count=5 * samples),
        "stories": check_stories(model, tokenizer, count=samples),
        "answers": check_answers(model, tokenizer, template, count=samples),
    }


def main() -> None:
    """Evaluate a checkpoint folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Qwen3_5MoeForCausalLM.from_pretrained(arguments.checkpoint, dtype=torch.float32).to(device)
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    report = evaluate(model, tokenizer, ChatTemplate.from_file(arguments.checkpoint / "chat_template.jinja"))
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
