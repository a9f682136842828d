"""Word lists of the text generator: who, what, where, and the inflected forms that sentences need."""

from collections.abc import Mapping, Sequence

Entry = Mapping[str, str]
"""One lexical entry: named forms of one word; ``text`` is the form that is written when no other is asked for."""

_PRONOUNS = {
    "girl": {"he": "she", "He": "She", "his": "her", "His": "Her", "him": "her", "himself": "herself"},
    "boy": {"he": "he", "He": "He", "his": "his", "His": "His", "him": "him", "himself": "himself"},
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GIRLS = _words(
    "Mia Anna Lily Rosa Clara Nora Ella Ivy Ruth Maya Zoe Lena Hana Olga Tess Fern Wren Alma Iris Juno Kira Dora "
    "Vera Mina Agnes Bella Carmen Daisy Edith Flora Greta Hazel Ines Judith Luna Martha Opal Pearl Sophie Willow"
)
BOYS = _words(
    "Tom Ben Leo Max Finn Hugo Otto Sam Jack Noah Paul Emil Karl Omar Theo Luca Rory Dan Felix Ivan Milo Oscar "
    "Pip Remy Arthur Bruno Caspar Dmitri Edgar Frank Gabriel Henry Isaac Jonas Lars Martin Nils Peter Rupert "
    "Walter"
)
ANIMALS = _words(
    "fox rabbit bear mouse hedgehog squirrel kitten duckling badger otter frog puppy piglet lamb raccoon beaver"
)
COLOURS = _words("red blue green yellow white black purple brown silver golden pink grey")
OBJECTS = _words(
    "kite ball lantern drum boat book hat scarf key bell map spoon ribbon whistle basket blanket cup flute wheel "
    "crown pencil mirror pillow rope ladder button candle teapot violin puppet jacket compass marble feather "
    "necklace bucket"
)
FOODS = _words(
    "bread honey cheese soup plums cherries pears nuts cake porridge berries pie apples biscuits carrots "
    "dumplings grapes pancakes strawberries walnuts"
)
CITIES = _words(
    "Paris London Rome Oslo Lima Cairo Tokyo Delhi Berlin Madrid Quito Dublin Vienna Lisbon Prague Athens "
    "Helsinki Warsaw Nairobi Sydney Montreal Chicago Bangkok Jakarta"
)
ROOMS = _words("kitchen garden barn attic cellar hall library workshop bedroom stable bathroom pantry greenhouse tower")


def _texts(words: Sequence[str]) -> tuple[Entry, ...]:
    return tuple({"text": word} for word in words)


CHILDREN: tuple[Entry, ...] = tuple(
    {"text": name, "kind": kind, **_PRONOUNS[kind]}
    for kind, names in (("girl", GIRLS), ("boy", BOYS))
    for name in names
)
"""Every name as a child, with the pronouns that go with it."""

CREATURES: tuple[Entry, ...] = tuple(
    {**child, "kind": ANIMALS[(7 * index) % len(ANIMALS)]} for index, child in enumerate(CHILDREN)
)
"""Every name as an animal."""

HELPERS: tuple[Entry, ...] = tuple(
    {"text": f"{article} {adjective} {noun}", "Text": f"{article.capitalize()} {adjective} {noun}", "noun": noun}
    for article, adjective, noun in (
        ("an", "old", "owl"), ("a", "grey", "goose"), ("a", "wise", "turtle"), ("a", "busy", "miller"),
        ("a", "friendly", "farmer"), ("a", "kind", "baker"), ("a", "tall", "heron"), ("a", "quiet", "shepherd"),
        ("a", "cheerful", "sparrow"), ("an", "ancient", "toad"), ("a", "patient", "fisherman"), ("a", "clever", "crow"),
    )
)  # fmt: skip

SLOTS: Mapping[str, tuple[Entry, ...]] = {
    "hero": (*CHILDREN, *CREATURES),
    "friend": CHILDREN,
    "helper": HELPERS,
    "colour": _texts(COLOURS),
    "object": _texts(OBJECTS),
    "food": _texts(FOODS),
    "trait": _texts(_words("little brave curious gentle clever cheerful quiet lively thoughtful stubborn")),
    "home": _texts((
        "in a small house by the river", "at the edge of the forest", "on a windy hill", "in a village by the sea",
        "near the old mill", "in a valley full of flowers", "on a farm with many cows",
        "beside a deep blue lake", "not far from the mountains", "in a little town with narrow streets",
    )),
    "place": _texts((
        "the market", "the meadow", "the beach", "the forest", "the pond", "the orchard", "the bridge", "the hill",
        "the harbour", "the old castle", "the waterfall", "the lighthouse",
    )),
    "hiding": _texts((
        "under the old bridge", "behind the mill", "in the tall grass", "inside a hollow tree", "beside the well",
        "under a pile of leaves", "behind the big rock", "between two barrels", "at the bottom of the garden",
        "on top of the hay", "near the broken fence", "below the wooden stairs",
    )),
    "morning": _texts((
        "sunny morning", "cold morning", "quiet evening", "windy day", "bright afternoon", "misty morning",
        "summer evening", "winter night",
    )),
    "storm": _texts(("a heavy rain", "a great storm", "a thick fog", "a cold wind", "a sudden snow")),
}  # fmt: skip
"""Slots of the story grammar and the entries that each is drawn from."""

DISTINCT: Mapping[str, str] = {"friend": "hero"}
"""A slot that must not carry the same name as another."""
