"""A grammar of sentence forms with slots that stay bound: generation with exact probability, and parsing.

A text is drawn by choosing a plot, for every stage of the plot whether it is told and in which form, and for every slot
that a form is the first to mention an entry of the lexicon. All of these are counted in nats, so that a text's
information content is known exactly. The parser finds every derivation of a text: it is the checker of model's stories.
"""

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tools.tiny_model.words import Entry

T = TypeVar("T")
World = Mapping[str, Entry]
"""Slots that are bound, and to what."""

_REFERENCE = re.compile(r"\{(\w+)(?:\.(\w+))?\}")


@dataclass(slots=True)
class Draw:
    """A seeded source of choices that sums up how improbable they were, in nats."""

    rng: random.Random
    nats: float = 0.0

    def choose(self, options: Sequence[T]) -> T:
        """Return one of the options, all equally likely."""
        self.nats += math.log(len(options))
        return options[self.rng.randrange(len(options))]

    def chance(self, probability: float) -> bool:
        """Return True with this probability, strictly between 0 and 1, or certainly at 1."""
        if probability == 1.0:
            return True
        hit = self.rng.random() < probability
        self.nats -= math.log(probability if hit else 1 - probability)
        return hit


Part = str | tuple[str, str]
"""Literal text, or (slot, form of its entry)."""


def parse_form(form: str) -> tuple[Part, ...]:
    """Split ``"{hero} lost {hero.his} {object}."`` into literals and references."""
    parts: list[Part] = []
    end = 0
    for match in _REFERENCE.finditer(form):
        if match.start() > end:
            parts.append(form[end : match.start()])
        parts.append((match[1], match[2] or "text"))
        end = match.end()
    if end < len(form):
        parts.append(form[end:])
    return tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a plot: the forms it can be told in, how often it is told at all, and what precedes it."""

    forms: tuple[tuple[Part, ...], ...]
    probability: float = 1.0
    separator: str = " "


def stage(*forms: str, probability: float = 1.0, paragraph: bool = False) -> Stage:
    """Return a stage of these forms; ``paragraph`` begins a new one."""
    return Stage(
        forms=tuple(parse_form(form) for form in forms), probability=probability, separator="\n\n" if paragraph else " "
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """One way in which the grammar makes a text."""

    plot: str
    world: World
    nats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """Plots over a lexicon.

    ``distinct`` names slots whose entry may not have the same text as that of another slot.
    """

    slots: Mapping[str, tuple[Entry, ...]]
    plots: Mapping[str, tuple[Stage, ...]]
    distinct: Mapping[str, str] = field(default_factory=dict)

    def entries(self, slot: str, world: World) -> Sequence[Entry]:
        """Return what an unbound slot can be bound to in this world."""
        other = world.get(self.distinct.get(slot, ""))
        entries = self.slots[slot]
        return entries if other is None else [entry for entry in entries if entry["text"] != other["text"]]

    def generate(self, draw: Draw, world: World | None = None) -> tuple[str, Derivation]:
        """Draw a text in which the slots of ``world`` are already bound."""
        before = draw.nats
        bound = dict(world or {})
        plot = draw.choose(tuple(self.plots))
        pieces: list[str] = []
        for step in self.plots[plot]:
            if not draw.chance(step.probability):
                continue
            pieces.append(step.separator if pieces else "")
            for part in draw.choose(step.forms):
                if isinstance(part, str):
                    pieces.append(part)
                    continue
                slot, form = part
                if slot not in bound:
                    bound[slot] = draw.choose(self.entries(slot, bound))
                pieces.append(bound[slot][form])
        return "".join(pieces), Derivation(plot=plot, world=bound, nats=draw.nats - before)

    def derivations(self, text: str, world: World | None = None) -> list[Derivation]:
        """Return every derivation of exactly this text; none when the text is not of the grammar."""
        start = math.log(len(self.plots))
        return [
            Derivation(plot=plot, world=end, nats=start + nats)
            for plot, stages in self.plots.items()
            for position, end, nats in self._match_stages(stages, text, 0, dict(world or {}))
            if position == len(text)
        ]

    def longest_prefix(self, text: str, world: World | None = None) -> int:
        """Return how many characters of the text the grammar can make, to say where a bad text goes wrong."""
        reach = 0
        for stages in self.plots.values():
            for count in range(1, len(stages) + 1):
                for position, _, _ in self._match_stages(stages[:count], text, 0, dict(world or {})):
                    reach = max(reach, position)
        return reach

    def _match_stages(
        self, stages: Sequence[Stage], text: str, position: int, world: World
    ) -> Iterator[tuple[int, World, float]]:
        if not stages:
            yield position, world, 0.0
            return
        first, rest = stages[0], stages[1:]
        if first.probability < 1.0:
            skipped = -math.log(1 - first.probability)
            for end, bound, nats in self._match_stages(rest, text, position, world):
                yield end, bound, nats + skipped
        separator = first.separator if position else ""
        if not text.startswith(separator, position):
            return
        told = math.log(len(first.forms)) - math.log(first.probability)
        for form in first.forms:
            for middle, bound, nats in self._match_form(form, text, position + len(separator), world):
                for end, final, more in self._match_stages(rest, text, middle, bound):
                    yield end, final, told + nats + more

    def _match_form(
        self, parts: Sequence[Part], text: str, position: int, world: World
    ) -> Iterator[tuple[int, World, float]]:
        for index, part in enumerate(parts):
            if isinstance(part, tuple) and part[0] not in world:
                slot, form = part
                entries = self.entries(slot, world)
                for entry in entries:
                    if text.startswith(entry[form], position):
                        end = position + len(entry[form])
                        for final, bound, nats in self._match_form(
                            parts[index + 1 :], text, end, {**world, slot: entry}
                        ):
                            yield final, bound, nats + math.log(len(entries))
                return
            literal = part if isinstance(part, str) else world[part[0]][part[1]]
            if not text.startswith(literal, position):
                return
            position += len(literal)
        yield position, world, 0.0
