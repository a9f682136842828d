"""The shipped model through the whole project: stories and answers, on the CPU."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from qwen35_moe.chat import ChatTemplate
from qwen35_moe.engine import Engine
from qwen35_moe.exporter import ExportOptions, export_checkpoint
from qwen35_moe.generation import Completion, stream_text
from qwen35_moe.sampling import SamplingParameters
from qwen35_moe.tokenizer import Tokenizer
from qwen35_tiny import checkpoint_path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.tiny_model import card
from tools.tiny_model.evaluate import STORY_PROMPT, answer_cases
from tools.tiny_model.stories import STORIES

LEARNED = {"given", "moves", "chain", "echo", "knowledge", "small_talk", "weather", "time", "find"}
"""The forms that the evaluation of the shipped weights found right throughout."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("tiny") / "program"
    export_checkpoint(checkpoint_path(), folder, ExportOptions(quant="none", max_context=512))
    with Engine.load(folder) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(checkpoint_path())


def complete(engine: Engine, tokenizer: Tokenizer, prompt: str, sampling: SamplingParameters) -> Completion:
    completion = Completion(prompt_ids=tokenizer.encode(prompt), load_s=0.0)
    for _ in stream_text(engine, tokenizer, completion, sampling, max_new_tokens=256):
        pass
    return completion


def test_stories_are_the_grammars(engine: Engine, tokenizer: Tokenizer) -> None:
    sampled = [
        complete(engine, tokenizer, STORY_PROMPT, SamplingParameters(temperature=0.8, seed=seed)) for seed in range(4)
    ]
    stories = [STORY_PROMPT + completion.text for completion in sampled]
    assert all(completion.finish_reason == "stop" for completion in sampled)
    assert len(set(stories)) == 4
    parsed = [story for story in stories if STORIES.derivations(story)]
    assert len(parsed) >= 3, stories


def test_answers_of_the_forms_that_it_has_learned(engine: Engine, tokenizer: Tokenizer) -> None:
    template = ChatTemplate.from_file(checkpoint_path() / "chat_template.jinja")
    cases = [case for case in answer_cases(template, count=40, seed=17) if case.form in LEARNED]
    greedy = SamplingParameters(temperature=0)
    wrong = []
    for case in cases:
        answer = complete(engine, tokenizer, case.prompt, greedy).text.rpartition("</think>")[2].strip()
        if answer != case.expected:
            wrong.append((case, answer))
    assert {case.form for case in cases} == LEARNED
    assert len(wrong) <= 1, wrong


def test_card_states_the_results() -> None:
    text = card.CARD.read_text(encoding="utf-8")
    assert card.updated(text) == text
    forms = json.loads(card.PERPLEXITY.read_text(encoding="utf-8"))["forms"]
    assert next(iter(forms)) == "unquantized"
    assert len(forms) == 7
    assert all(form["above"] < 0.03 for form in forms.values())
