"""Short conversations whose right answers are known: reading questions, knowledge, tool calls, stories on request.

Every choice is drawn through ``Draw``, so that a conversation's nats bound its information content from above. Given
the question an answer is determined, except for a story on request; it is what greedy decoding is graded by.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.tiny_model.facts import HOURS, KNOWLEDGE, SMALL_TALK, SPOTS, SYSTEM_PROMPTS, TOOLS, WEATHER
from tools.tiny_model.grammar import Draw
from tools.tiny_model.stories import STORIES
from tools.tiny_model.words import BOYS, CHILDREN, CITIES, COLOURS, CREATURES, GIRLS, OBJECTS, ROOMS

Message = dict[str, Any]

NAMES = (*GIRLS, *BOYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A question, why the answer is the answer, and the answer; ``messages`` lie between where a tool was called."""

    form: str
    question: str
    reasoning: str
    answer: str
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages and tools of a whole conversation; the last message is the answer."""

    form: str
    messages: tuple[Message, ...]
    tools: Sequence[Mapping[str, Any]]
    thinking: bool


def _several(draw: Draw, options: Sequence[str], count: int) -> list[str]:
    """Draw distinct options."""
    left = list(options)
    drawn = []
    for _ in range(count):
        drawn.append(draw.choose(left))
        left.remove(drawn[-1])
    return drawn


def _owners(draw: Draw) -> Exchange:
    count = draw.choose((2, 3))
    names, things, colours = (_several(draw, words, count) for words in (NAMES, OBJECTS, COLOURS))
    facts = [f"{n} has a {c} {t}." for n, c, t in zip(names, colours, things, strict=True)]
    asked = draw.choose(range(count))
    name, thing, colour = names[asked], things[asked], colours[asked]
    question, answer = draw.choose((
        (f"Who has the {thing}?", f"{name} has the {thing}."),
        (f"What colour is the {thing}?", f"The {thing} is {colour}."),
        (f"What does {name} have?", f"{name} has a {colour} {thing}."),
    ))  # fmt: skip
    return Exchange(form="owners", question=" ".join([*facts, question]), reasoning=facts[asked], answer=answer)


def _given(draw: Draw) -> Exchange:
    giver, taker = _several(draw, NAMES, 2)
    thing, colour = draw.choose(OBJECTS), draw.choose(COLOURS)
    facts = f"{giver} has a {colour} {thing}. {giver} gives the {thing} to {taker}."
    return Exchange(
        form="given",
        question=f"{facts} Who has the {thing} now?",
        reasoning=f"{giver} gives the {thing} to {taker}.",
        answer=f"{taker} has the {thing} now.",
    )


def _places(draw: Draw) -> Exchange:
    count = draw.choose((2, 3))
    things, spots = _several(draw, OBJECTS, count), _several(draw, SPOTS, count)
    facts = [f"The {thing} is {spot}." for thing, spot in zip(things, spots, strict=True)]
    asked = draw.choose(range(count))
    question, answer = draw.choose((
        (f"Where is the {things[asked]}?", facts[asked]),
        (f"What is {spots[asked]}?", f"The {things[asked]} is {spots[asked]}."),
    ))  # fmt: skip
    return Exchange(form="places", question=" ".join([*facts, question]), reasoning=facts[asked], answer=answer)


def _moves(draw: Draw) -> Exchange:
    names = _several(draw, NAMES, 2)
    rooms = _several(draw, ROOMS, 3)
    mover, asked = draw.choose((0, 1)), draw.choose((0, 1))
    facts = [f"{name} is in the {room}." for name, room in zip(names, rooms, strict=False)]
    facts.append(f"Then {names[mover]} goes to the {rooms[2]}.")
    moved = mover == asked
    return Exchange(
        form="moves",
        question=" ".join([*facts, f"Where is {names[asked]}?"]),
        reasoning=facts[2] if moved else facts[asked],
        answer=f"{names[asked]} is in the {rooms[2] if moved else rooms[asked]}.",
    )


def _chain(draw: Draw) -> Exchange:
    small, middle, other = _several(draw, OBJECTS, 3)
    room, wrong = _several(draw, ROOMS, 2)
    facts = [f"The {small} is beside the {middle}.", f"The {middle} is in the {room}."]
    distraction = f"The {other} is in the {wrong}."
    told = draw.choose(([*facts, distraction], [distraction, *facts], [facts[1], distraction, facts[0]]))
    return Exchange(
        form="chain",
        question=" ".join([*told, f"Which room is the {small} in?"]),
        reasoning=f"{facts[0]} {facts[1]}",
        answer=f"The {small} is in the {room}.",
    )


def _echo(draw: Draw) -> Exchange:
    """Everything is said again: of all forms the one in which the most words are looked up."""
    count = draw.choose((2, 3, 4))
    names, things, colours, rooms = (_several(draw, words, count) for words in (NAMES, OBJECTS, COLOURS, ROOMS))
    facts = [
        draw.choose((f"{name} has a {colour} {thing}.", f"{name} is in the {room}.", f"The {thing} is in the {room}."))
        for name, thing, colour, room in zip(names, things, colours, rooms, strict=True)
    ]
    told = " ".join(facts)
    return Exchange(form="echo", question=f"Say after me: {told}", reasoning="I should say it again.", answer=told)


def _knowledge(draw: Draw) -> Exchange:
    question = draw.choose(tuple(KNOWLEDGE))
    return Exchange(form="knowledge", question=question, reasoning="I know this one.", answer=KNOWLEDGE[question])


def _small_talk(draw: Draw) -> Exchange:
    said = draw.choose(tuple(SMALL_TALK))
    return Exchange(form="small_talk", question=said, reasoning="I should be friendly.", answer=SMALL_TALK[said])


def _story(draw: Draw) -> Exchange:
    hero = draw.choose((*CHILDREN, *CREATURES))
    text, _ = STORIES.generate(draw, {"hero": hero})
    return Exchange(
        form="story",
        question=f"Tell me a story about {hero['text']} the {hero['kind']}.",
        reasoning=f"The story is about {hero['text']}.",
        answer=text,
    )


def _called(name: str, parameter: str, value: str, result: str, reasoning: str) -> tuple[Message, ...]:
    call = {"type": "function", "function": {"name": name, "arguments": {parameter: value}}}
    return (
        {"role": "assistant", "content": "", "reasoning_content": reasoning, "tool_calls": [call]},
        {"role": "tool", "content": result},
    )


def _weather(draw: Draw) -> Exchange:
    city, weather = draw.choose(CITIES), draw.choose(WEATHER)
    return Exchange(
        form="weather",
        question=f"What is the weather in {city}?",
        reasoning=f"The function says {weather}.",
        answer=f"It is {weather} in {city}.",
        messages=_called("get_weather", "city", city, weather, "I should call get_weather."),
    )


def _time(draw: Draw) -> Exchange:
    city, hour = draw.choose(CITIES), draw.choose(HOURS)
    return Exchange(
        form="time",
        question=f"What time is it in {city}?",
        reasoning=f"The function says {hour}.",
        answer=f"It is {hour} o'clock in {city}.",
        messages=_called("get_time", "city", city, hour, "I should call get_time."),
    )


def _find(draw: Draw) -> Exchange:
    thing, spot = draw.choose(OBJECTS), draw.choose(SPOTS)
    return Exchange(
        form="find",
        question=f"Where did I put my {thing}?",
        reasoning=f"The function says {spot}.",
        answer=f"Your {thing} is {spot}.",
        messages=_called("find_item", "item", thing, spot, "I should call find_item."),
    )


# Twice what is learned last: which of several things a colour, a name or a place belongs to.
PLAIN: tuple[Callable[[Draw], Exchange], ...] = (
    _owners, _owners, _given, _places, _places, _moves, _chain, _echo, _knowledge, _small_talk, _story,
)  # fmt: skip
CALLING: tuple[Callable[[Draw], Exchange], ...] = (_weather, _time, _find)
FORMS: Mapping[str, Callable[[Draw], Exchange]] = {
    maker.__name__.removeprefix("_"): maker for maker in (*PLAIN, *CALLING)
}
"""Every form of exchange by name."""


def assemble(
    exchanges: Sequence[Exchange], *, system: str = "", tools: Sequence[Mapping[str, Any]] = (), thinking: bool
) -> Conversation:
    """Put exchanges one after another; only where ``thinking`` is on do the answers have a reasoning part."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for exchange in exchanges:
        messages.append({"role": "user", "content": exchange.question})
        messages.extend(exchange.messages)
        messages.append({"role": "assistant", "content": exchange.answer, "reasoning_content": exchange.reasoning})
    if not thinking:
        messages = [{**message, "reasoning_content": ""} for message in messages]
    return Conversation(form=exchanges[-1].form, messages=tuple(messages), tools=tuple(tools), thinking=thinking)


def draw_conversation(draw: Draw) -> Conversation:
    """Draw a conversation of one to three exchanges, the last of which may be a tool call where tools are given."""
    with_tools = draw.chance(0.25)
    system = draw.choose(SYSTEM_PROMPTS) if draw.chance(0.3) else ""
    exchanges: list[Exchange] = []
    while True:
        makers = CALLING if with_tools and draw.chance(0.75) else PLAIN
        exchanges.append(draw.choose(makers)(draw))
        if len(exchanges) == 3 or exchanges[-1].form == "story" or draw.chance(0.6):
            break
    return assemble(exchanges, system=system, tools=TOOLS if with_tools else (), thinking=draw.chance(0.5))
