"""What the tiny model knows of the world, and the functions that it can call."""

from collections.abc import Mapping, Sequence
from typing import Any

KNOWLEDGE: Mapping[str, str] = {
    "What does a cow say?": "A cow says moo.",
    "What does a dog say?": "A dog says woof.",
    "What does a cat say?": "A cat says meow.",
    "What does a duck say?": "A duck says quack.",
    "What does a sheep say?": "A sheep says baa.",
    "What does an owl say?": "An owl says hoo.",
    "What colour is the sky?": "The sky is blue.",
    "What colour is grass?": "Grass is green.",
    "What colour is snow?": "Snow is white.",
    "What colour is a lemon?": "A lemon is yellow.",
    "What colour is coal?": "Coal is black.",
    "What do bees make?": "Bees make honey.",
    "What do cows give?": "Cows give milk.",
    "What do hens lay?": "Hens lay eggs.",
    "What do spiders weave?": "Spiders weave webs.",
    "What do birds build?": "Birds build nests.",
    "Where do fish live?": "Fish live in water.",
    "Where do foxes live?": "Foxes live in dens.",
    "Where does the sun rise?": "The sun rises in the east.",
    "Where does the sun set?": "The sun sets in the west.",
    "When do owls sleep?": "Owls sleep during the day.",
    "When do stars shine?": "Stars shine at night.",
    "What is ice made of?": "Ice is made of water.",
    "What is bread made of?": "Bread is made of flour.",
    "What is cheese made of?": "Cheese is made of milk.",
    "What do we use to cut paper?": "We use scissors to cut paper.",
    "What do we use to open a lock?": "We use a key to open a lock.",
    "What do we wear on our feet?": "We wear shoes on our feet.",
    "What do we wear on our head?": "We wear a hat on our head.",
    "What is the opposite of hot?": "The opposite of hot is cold.",
    "What is the opposite of big?": "The opposite of big is small.",
    "What is the opposite of day?": "The opposite of day is night.",
    "What comes after spring?": "Summer comes after spring.",
    "What comes after summer?": "Autumn comes after summer.",
    "What comes after autumn?": "Winter comes after autumn.",
    "What comes after winter?": "Spring comes after winter.",
}

SMALL_TALK: Mapping[str, str] = {
    "Hello!": "Hello! How can I help you?",
    "Good morning!": "Good morning! What can I do for you?",
    "How are you?": "I am well, thank you.",
    "Who are you?": "I am a tiny language model.",
    "What can you do?": "I can tell stories and answer simple questions.",
    "Thank you!": "You are welcome!",
    "Good night!": "Good night! Sleep well.",
}

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You answer in one short sentence.",
    "You are a friendly storyteller.",
)

WEATHER = ("sunny", "rainy", "cloudy", "windy", "snowy", "foggy")
HOURS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
SPOTS = (
    "in the box", "under the bed", "behind the door", "on the table", "beside the chair", "in the drawer",
    "under the stairs", "on the shelf", "behind the curtain", "in the cupboard",
)  # fmt: skip


def _function(name: str, description: str, parameter: str) -> Mapping[str, Any]:
    """Return a function of one text parameter, in the form that chat templates take."""
    properties = {parameter: {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS: Sequence[Mapping[str, Any]] = (
    _function("get_weather", "Get the weather in a city.", "city"),
    _function("get_time", "Get the time in a city.", "city"),
    _function("find_item", "Find out where an item is.", "item"),
)
