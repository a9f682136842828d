"""The text generator, its checker, and the training forward pass of tools/tiny_model."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from qwen35_moe.chat import ChatTemplate, ChatTemplateError
from qwen35_tiny import checkpoint_path, held_out_path
from tokenizers import Tokenizer
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.tiny_model.architecture import build
from tools.tiny_model.conversations import FORMS, assemble, draw_conversation
from tools.tiny_model.corpus import END_OF_TEXT, HELD_OUT_SEED, draw_document, render, row
from tools.tiny_model.evaluate import GRADED, answer_cases, held_out_loss
from tools.tiny_model.facts import TOOLS
from tools.tiny_model.forward import forward, inverse
from tools.tiny_model.grammar import Draw
from tools.tiny_model.held_out import held_out_text
from tools.tiny_model.muon import Muon, orthogonal
from tools.tiny_model.stories import STORIES
from tools.tiny_model.train import Batches, Step, TrainingOptions, schedule


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate.from_file(checkpoint_path() / "chat_template.jinja")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(checkpoint_path() / "tokenizer.json"))


def stories(count: int) -> Iterator[tuple[str, float]]:
    for seed in range(count):
        draw = Draw(random.Random(seed))
        text, derivation = STORIES.generate(draw)
        assert derivation.nats == draw.nats
        yield text, draw.nats


def test_every_story_has_one_derivation_of_the_stated_probability() -> None:
    """So the generator's nats are the exact information content of its stories."""
    for text, nats in stories(200):
        (derivation,) = STORIES.derivations(text)
        assert derivation.nats == pytest.approx(nats)
        assert STORIES.longest_prefix(text) == len(text)


@pytest.mark.parametrize("break_", [
    pytest.param(lambda text, hero, other: text[: text.rindex(hero)] + other + text[text.rindex(hero) + len(hero) :],
                 id="another name at the end"),
    pytest.param(lambda text, hero, other: text[:-40], id="cut"),
    pytest.param(lambda text, hero, other: text + " And so on.", id="goes on"),
    pytest.param(lambda text, hero, other: text.replace(". ", ", ", 1), id="sentence form"),
    pytest.param(lambda text, hero, other: text.replace("\n\n", " ", 1), id="paragraph"),
])  # fmt: skip
def test_checker_refuses(break_: object) -> None:
    refused = 0
    for text, _ in stories(40):
        (derivation,) = STORIES.derivations(text)
        hero = derivation.world["hero"]["text"]
        broken = break_(text, hero, "Zoe" if hero != "Zoe" else "Tom")  # type: ignore[operator]
        assert broken != text
        refused += not STORIES.derivations(broken)
    # A name is mentioned last where another fits, too, in a few stories: "Zoe" may be the friend.
    assert refused >= 38


def test_documents_are_reproducible_and_all_different(template: ChatTemplate) -> None:
    first = [draw_document(seed, template) for seed in range(50)]
    assert first == [draw_document(seed, template) for seed in range(50)]
    assert {document.kind for document in first} == {"story", "conversation"}
    assert all(document.nats > 0 for document in first)


def test_rows(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    end = tokenizer.token_to_id(END_OF_TEXT)
    even, odd = row(2, 700, tokenizer, template), row(3, 700, tokenizer, template)
    assert len(even) == len(odd) == 700
    assert (even[0] == end, odd[0] == end) == (False, True)
    first = draw_document(2 * 64, template).text
    assert tokenizer.decode(even, skip_special_tokens=False).startswith(first + END_OF_TEXT)


def test_held_out_file_is_what_the_generator_makes() -> None:
    assert held_out_path().read_text(encoding="utf-8") == held_out_text()
    assert HELD_OUT_SEED > 64 * 64 * 12_000  # past every row of training


@pytest.mark.parametrize("thinking", [True, False], ids=["thinking", "not thinking"])
@pytest.mark.parametrize("form", FORMS)
def test_conversations_read_as_prompt_and_answer(template: ChatTemplate, form: str, thinking: bool) -> None:
    """The prompt that inference sees is how the text begins that training sees."""
    exchange = FORMS[form](Draw(random.Random(1)))
    conversation = assemble([exchange], tools=TOOLS if exchange.messages else (), thinking=thinking)
    whole = render(conversation, template)
    prompt = template.render(conversation.messages[:-1], tools=conversation.tools, enable_thinking=thinking)
    assert whole.startswith(prompt)
    assert whole.endswith(exchange.answer + "<|im_end|>\n")
    assert (f"<think>\n{exchange.reasoning}\n</think>" in whole) == thinking


def test_answer_cases_cover_every_form(template: ChatTemplate) -> None:
    cases = answer_cases(template, count=4 * len(GRADED), seed=3)
    assert {case.form for case in cases} == set(GRADED)
    assert any(case.expected.startswith("<tool_call>\n<function=") for case in cases)
    assert all(case.prompt.endswith(("<think>\n", "<think>\n\n</think>\n\n")) for case in cases)


USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes", "reasoning_content": "hm"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([USER], "<|im_start|>user\nHi<|im_end|>\n", id="user"),
        pytest.param([SYSTEM, {**SYSTEM, "content": "Be kind."}, USER],
                     "<|im_start|>system\nBe brief.\n\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
                     id="two system messages"),
        pytest.param([USER, SYSTEM],
                     "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
                     id="system not first"),
        pytest.param([{**SYSTEM, "role": "developer"}, USER],
                     "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n", id="developer"),
        pytest.param([SYSTEM], "<|im_start|>system\nBe brief.<|im_end|>\n", id="system only"),
        pytest.param([USER, ANSWER, USER],
                     "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n"
                     "<|im_start|>user\nHi<|im_end|>\n", id="old reasoning is dropped"),
        pytest.param([USER, ANSWER],
                     "<|im_start|>user\nHi<|im_end|>\n"
                     "<|im_start|>assistant\n<think>\nhm\n</think>\n\nYes<|im_end|>\n",
                     id="reasoning"),
        pytest.param([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
                     "<|im_start|>user\nab<|im_end|>\n", id="parts"),
    ],
)  # fmt: skip
def test_chat_template(template: ChatTemplate, messages: list[dict[str, object]], expected: str) -> None:
    assert template.render(messages, add_generation_prompt=False) == expected


@pytest.mark.parametrize("message", [
    pytest.param({"role": "narrator", "content": "x"}, id="unknown role"),
    pytest.param({"role": "user", "content": [{"type": "image", "image": "x"}]}, id="image"),
])  # fmt: skip
def test_chat_template_refuses(template: ChatTemplate, message: dict[str, object]) -> None:
    with pytest.raises(ChatTemplateError, match=r"narrator|image"):
        template.render([message])


@pytest.mark.parametrize("seed", range(20))
def test_chat_template_renders_alike_in_transformers(template: ChatTemplate, seed: int) -> None:
    conversation = draw_conversation(Draw(random.Random(seed)))
    reference = AutoTokenizer.from_pretrained(checkpoint_path())
    options = {"tools": list(conversation.tools) or None, "add_generation_prompt": True}
    rendered = reference.apply_chat_template(list(conversation.messages), tokenize=False, **options)
    assert template.render(conversation.messages, **options) == rendered  # type: ignore[arg-type]


def test_training_forward_equals_transformers(tokenizer: Tokenizer) -> None:
    model = build(tokenizer, seed=0)
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    tokens = torch.randint(0, 2048, (2, 128))
    with torch.no_grad():
        expected, (given, balance) = model(input_ids=tokens).logits, forward(model, tokens)
    assert float((given - expected).norm() / expected.norm()) < 1e-4
    assert float(balance) >= 4  # of top-4 routing; reached where all experts are used alike


def test_documents_of_a_row_do_not_see_each_other(tokenizer: Tokenizer) -> None:
    model = build(tokenizer, seed=0)
    tokens = torch.randint(0, 2000, (1, 128))
    segments = torch.tensor([[0] * 27 + [1] * 70 + [2] * 31])
    with torch.no_grad():
        together, _ = forward(model, tokens, segments)
        for begin, end in ((0, 27), (27, 97), (97, 128)):
            alone = torch.zeros(1, 128, dtype=torch.int64)
            alone[0, : end - begin] = tokens[0, begin:end]
            expected = forward(model, alone)[0][:, : end - begin]
            torch.testing.assert_close(together[:, begin:end], expected, atol=1e-4, rtol=1e-4)


def test_inverse_of_unit_triangular_matrices() -> None:
    system = torch.randn(3, 2, 64, 64, dtype=torch.float32) * 0.3
    unit = system.tril(-1) + torch.eye(64)
    torch.testing.assert_close(inverse(system) @ unit, torch.eye(64).expand_as(unit), atol=1e-4, rtol=0)


def test_held_out_loss_of_a_model_that_knows_nothing(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    model = build(tokenizer, seed=0)
    model.lm_head.weight.data.zero_()
    report = held_out_loss(model, tokenizer, template, count=4)
    assert report["all"]["loss"] == pytest.approx(torch.log(torch.tensor(2048.0)).item(), rel=1e-5)


@pytest.mark.parametrize("sizes", [(64, 64), (96, 32), (32, 96), (3, 48, 32)], ids=str)
def test_orthogonal_keeps_singular_vectors_and_levels_their_values(sizes: tuple[int, ...]) -> None:
    matrices = torch.randn(sizes)
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    given = u.mT @ orthogonal(matrices) @ v.mT
    kept = s > 0.05 * s.amax(-1, keepdim=True)  # smaller ones rise less in the rounds that there are
    values = given.diagonal(dim1=-2, dim2=-1)
    assert 0.6 < float(values[kept].min()) <= float(values.max()) < 1.3
    torch.testing.assert_close(given, torch.diag_embed(values), atol=1e-3, rtol=0)


def test_muon_takes_a_stack_as_its_matrices() -> None:
    start, gradients = torch.randn(3, 16, 8), torch.randn(2, 3, 16, 8)
    stack = torch.nn.Parameter(start.clone())
    alone = [torch.nn.Parameter(matrix.clone()) for matrix in start]
    rate = torch.tensor(0.1)
    for optimizer, parameters in ((Muon([stack], rate), [stack]), (Muon(alone, rate), alone)):
        for gradient in gradients:
            for parameter, part in zip(parameters, [gradient] if len(parameters) == 1 else gradient, strict=True):
                parameter.grad = part
            optimizer.step()
    torch.testing.assert_close(stack.detach(), torch.stack(alone).detach())
    assert float((stack.detach() - start).norm()) > 0.1


def test_rates_rise_stay_and_fall_to_zero() -> None:
    options = TrainingOptions(warmup=10, decay=0.5)
    assert [schedule(options, 100, progress) for progress in (0.1, 0.5, 0.75, 1.0)] == [1.0, 1.0, 0.5, 0.0]
    assert schedule(options, 0, 0.0) == 0.1


def test_a_few_steps_learn(tokenizer: Tokenizer) -> None:
    options = TrainingOptions(rows=2, length=128, workers=0, warmup=1)
    update = Step(build(tokenizer, seed=0), options, tokenizer.token_to_id(END_OF_TEXT))
    batch = next(iter(Batches(options)))
    losses = [float(update(batch, 1.0)[0]) for _ in range(12)]
    assert losses[0] == pytest.approx(7.6, abs=0.2)
    assert losses[-1] < 0.6 * losses[0]
