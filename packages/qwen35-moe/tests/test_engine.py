"""The engine: lengths of prompts, ends of outputs, slots, and every request that it refuses."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from device_core import ProgramError
from qwen35_moe.checkpoint import load_decoder
from qwen35_moe.engine import Engine, Generation
from qwen35_moe.errors import EngineError, MemoryPlanError, PromptError
from qwen35_moe.exporter import ExportOptions
from qwen35_moe.memory import MemoryPlan
from qwen35_moe.model import Decoder, Int4
from qwen35_moe.random_program import write_random_program
from qwen35_moe.sampling import SamplingParameters
from qwen35_moe.testing import small_config

GREEDY = SamplingParameters(temperature=0)
CONTEXT, CHUNK = 48, 16


@pytest.fixture(scope="module")
def engine(small_program: Path) -> Iterator[Engine]:
    with Engine.load(small_program) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def decoder(small_checkpoint: Path) -> Decoder:
    return load_decoder(small_checkpoint, int4=Int4(group_size=32), slots=1, context=CONTEXT + 1)


def prompt_of(count: int) -> list[int]:
    return torch.randint(0, 301, (count,)).tolist()


def generate(
    engine: Engine, prompt: list[int], sampling: SamplingParameters = GREEDY, *, count: int, slot: int = 0
) -> Generation:
    """Start an output that no id ends, so that its length is known."""
    return engine.generate(prompt, sampling, max_new_tokens=count, slot=slot, stop_ids=())


@torch.no_grad()
def greedy(decoder: Decoder, prompt: list[int], count: int) -> list[int]:
    """Return greedy tokens of the eager model, whole prompt at once."""
    zero = torch.tensor([0])
    hidden = decoder.prefill(torch.tensor(prompt), zero, zero)[-1:]
    tokens = [int(decoder.logits(hidden).argmax())]
    for position in range(len(prompt), len(prompt) + count - 1):
        hidden = decoder.decode(torch.tensor(tokens[-1:]), torch.tensor([position]), zero)
        tokens.append(int(decoder.logits(hidden).argmax()))
    return tokens


@pytest.mark.parametrize("length", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1, CONTEXT - 1, CONTEXT])
def test_prompt_of_every_length_up_to_the_context(engine: Engine, decoder: Decoder, length: int) -> None:
    prompt = prompt_of(length)
    count = min(4, CONTEXT - length + 1)
    generation = generate(engine, prompt, count=4)
    assert list(generation) == greedy(decoder, prompt, count)
    assert generation.finish_reason == "length"


@pytest.mark.parametrize(("length", "count"), [(CONTEXT, 1), (CONTEXT - 1, 2), (1, CONTEXT)])
def test_output_ends_with_the_context(engine: Engine, length: int, count: int) -> None:
    generation = generate(engine, prompt_of(length), count=1000)
    assert len(list(generation)) == count
    assert generation.finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "expected at least one token, got an empty prompt"),
        ([1] * (CONTEXT + 1), {}, f"{CONTEXT + 1} tokens do not fit the context of {CONTEXT}"),
        ([1] * 10 * CONTEXT, {}, f"{10 * CONTEXT} tokens do not fit the context of {CONTEXT}"),
        ([1, -1], {}, "expected token ids from 0 to 300, got -1"),
        ([301], {}, "expected token ids from 0 to 300, got 301"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens: expected at least 1, got 0"),
        ([1], {"slot": 2}, "slot: expected 0 to 1, got 2"),
        ([1], {"slot": -1}, "slot: expected 0 to 1, got -1"),
    ],
    ids=["empty", "context+1", "context*10", "id-1", "idV", "no-tokens", "slot2", "slot-1"],
)
def test_request_is_refused_before_work_begins(
    engine: Engine, prompt: list[int], options: dict[str, int], message: str
) -> None:
    with pytest.raises(PromptError, match=message):
        engine.generate(prompt, GREEDY, **{"max_new_tokens": 1, **options})


def test_output_stops_at_an_end_of_sequence_id_which_is_not_yielded(engine: Engine) -> None:
    prompt = prompt_of(9)
    tokens = list(generate(engine, prompt, count=12))
    last = next(i for i in range(3, 12) if tokens[i] not in tokens[:i])
    generation = engine.generate(prompt, GREEDY, max_new_tokens=12, stop_ids=(302, tokens[last]))
    assert list(generation) == tokens[:last]
    assert generation.finish_reason == "stop"


def test_ids_that_end_an_output_come_with_the_model(engine: Engine) -> None:
    assert engine.info.eos_token_ids == (0,)


def test_interleaved_generations_give_what_they_give_alone(engine: Engine) -> None:
    prompts = (prompt_of(20), prompt_of(7))
    sampling = (SamplingParameters(temperature=0.9, seed=3), SamplingParameters(temperature=1.1, top_k=40, seed=0))
    alone = [
        list(generate(engine, p, s, count=12, slot=slot))
        for slot, (p, s) in enumerate(zip(prompts, sampling, strict=True))
    ]
    generations = [
        generate(engine, p, s, count=12, slot=slot) for slot, (p, s) in enumerate(zip(prompts, sampling, strict=True))
    ]
    given: list[list[int]] = [[], []]
    for turn in (0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0):
        given[turn].append(next(generations[turn]))
    assert given == alone


def test_slot_shows_nothing_of_its_last_sequence_even_if_it_left_nan(engine: Engine) -> None:
    prompt = prompt_of(20)
    expected = list(generate(engine, prompt, count=6))
    for state in engine.session.state.values():
        state.fill_(torch.nan if state.is_floating_point() else 7)
    assert list(generate(engine, prompt, count=6)) == expected


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_same_seed_gives_the_same_tokens(engine: Engine, seed: int) -> None:
    prompt, sampling = prompt_of(5), SamplingParameters(temperature=1.5, seed=seed)
    first = list(generate(engine, prompt, sampling, count=10))
    assert list(generate(engine, prompt, sampling, count=10, slot=1)) == first


def test_generation_whose_slot_was_taken_says_so(engine: Engine) -> None:
    first = generate(engine, prompt_of(3), count=9)
    next(first)
    next(generate(engine, prompt_of(3), count=9))
    with pytest.raises(EngineError, match="slot 0: a later generation has taken it"):
        next(first)


def test_prefill_in_pieces_of_the_callers_choice(engine: Engine) -> None:
    prompt = prompt_of(40)
    whole = engine.prefill(prompt).clone()
    engine.prefill(prompt[:23], slot=1)
    rest = engine.prefill(prompt[23:], slot=1, start=23)
    assert float((rest - whole).norm() / whole.norm()) < 1e-5


def copied(small_program: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "program"
    folder.mkdir()
    for file in small_program.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_other_schema_version_is_refused(small_program: Path, tmp_path: Path) -> None:
    folder = copied(small_program, tmp_path)
    document = json.loads((folder / "program.json").read_text())
    document["schema_version"] = 99
    (folder / "program.json").write_text(json.dumps(document))
    with pytest.raises(ProgramError, match="99"):
        Engine.load(folder)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9], ids=["early", "middle", "late"])
def test_flipped_byte_in_the_program_is_refused(small_program: Path, tmp_path: Path, place: float) -> None:
    folder = copied(small_program, tmp_path)
    data = bytearray((folder / "program.json").read_bytes())
    data[int(len(data) * place)] ^= 0x01
    (folder / "program.json").write_bytes(data)
    with pytest.raises(ProgramError):
        Engine.load(folder)


def test_shard_cut_short_is_named(small_program: Path, tmp_path: Path) -> None:
    folder = copied(small_program, tmp_path)
    shard = next(folder.glob("constants-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ProgramError, match=shard.name):
        Engine.load(folder)


@pytest.mark.parametrize(
    ("device", "message"),
    [("cuda:0", "exported for cpu, cannot run on cuda:0"), ("cuda:7", "exported for cpu, cannot run on cuda:7")],
)
def test_device_that_the_program_is_not_for_is_refused(small_program: Path, device: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        Engine.load(small_program, device=device)


@pytest.fixture(scope="module")
def gpu_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu") / "program"
    write_random_program(folder, small_config(), ExportOptions(group_size=32, max_context=32, device="cuda:0"))
    return folder


@pytest.mark.parametrize(
    ("count", "capability", "message"),
    [
        (0, (9, 0), "cuda:0: this machine has 0 CUDA devices"),
        (1, (7, 5), r"cuda:0: Some Card has compute capability 7\.5; expected 8\.0 or newer"),
    ],
    ids=["missing", "too-old"],
)
def test_unsuitable_gpu_is_refused(
    gpu_program: Path, monkeypatch: pytest.MonkeyPatch, count: int, capability: tuple[int, int], message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Some Card")
    with pytest.raises(EngineError, match=message):
        Engine.load(gpu_program)


def test_program_that_does_not_fit_is_refused_before_it_is_loaded(
    gpu_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (1024**2, 2 * 1024**2))
    plans: list[MemoryPlan] = []
    with pytest.raises(MemoryPlanError, match="the program does not fit: it needs"):
        Engine.load(gpu_program, on_plan=plans.append)
    assert plans[0].weights > 0
    assert plans[0].nbytes_free == 1024**2


def test_program_for_a_gpu_runs_on_the_cpu(gpu_program: Path) -> None:
    with Engine.load(gpu_program, device="cpu") as engine:
        assert len(list(generate(engine, [1, 2, 3], count=4))) == 4
