"""The stories: six plots in which names, places and objects that were mentioned once must be kept to the end."""

from tools.tiny_model.grammar import Grammar, Stage, stage
from tools.tiny_model.words import DISTINCT, SLOTS

_OPENING = stage(
    "Once upon a time there was a {trait} {hero.kind} named {hero} who lived {home}.",
    "Once upon a time, {home}, there lived a {trait} {hero.kind} named {hero}.",
    "Once upon a time a {trait} {hero.kind} named {hero} lived {home}.",
    "Long ago, {home}, there lived a {trait} {hero.kind} named {hero}.",
    "There once was a {trait} {hero.kind} called {hero} who lived {home}.",
)

_TREASURED = stage(
    "{hero} had a {colour} {object} and loved it more than anything.",
    "{hero.His} favourite thing in the world was a {colour} {object}.",
    "Every day {hero} played with {hero.his} {colour} {object}.",
    "Wherever {hero} went, {hero.he} took {hero.his} {colour} {object} along.",
)

_LOST: tuple[Stage, ...] = (
    _OPENING,
    _TREASURED,
    stage(
        "But one {morning} the {object} was gone.",
        "Then, one {morning}, {hero} could not find the {object}.",
        "One {morning} {hero} came back from {place} without the {object}.",
        paragraph=True,
    ),
    stage(
        "{hero.He} felt very sad and began to cry.",
        "{hero.He} looked in every corner, but the {object} was not there.",
        '"Where is my {object}?" {hero.he} asked, but nobody knew.',
        probability=0.8,
    ),
    stage(
        '{hero} met {helper} on the way. "Have you seen my {colour} {object}?" asked {hero}.',
        "Soon {hero} met {helper} and told the whole story of the {colour} {object}.",
        '{helper.Text} came by and asked, "Why are you so sad, {hero}?"',
    ),
    stage(
        '"I saw something {colour} {hiding}," said the {helper.noun}.',
        '"Go and look {hiding}," said the {helper.noun}.',
        'The {helper.noun} thought for a while and said, "Perhaps it is {hiding}."',
    ),
    stage(
        "So {hero} went to look {hiding}.",
        "{hero} ran as fast as {hero.he} could and looked {hiding}.",
        "At once {hero} hurried off to see what was {hiding}.",
        paragraph=True,
    ),
    stage(
        "And there was the {colour} {object}!",
        "There it was, the {colour} {object}, as good as new.",
        "The {colour} {object} was lying there, a little wet but safe.",
    ),
    stage(
        '"Thank you!" said {hero} and gave the {helper.noun} some {food}.',
        "{hero} thanked the {helper.noun} and they shared some {food}.",
        "To say thank you, {hero} brought the {helper.noun} some {food}.",
        probability=0.8,
    ),
    stage(
        "From that day on, {hero} never lost the {object} again.",
        "That night {hero} slept well, with the {object} beside {hero.him}.",
        "{hero} went home with the {object} and was happy.",
    ),
)

_GIFT: tuple[Stage, ...] = (
    _OPENING,
    stage(
        "{hero.His} best friend was {friend}.",
        "{hero} had a good friend whose name was {friend}.",
        "Next door lived {friend}, and the two were best friends.",
    ),
    stage(
        "One {morning} it was the birthday of {friend}, and {hero} wanted to give {friend.him} a {colour} {object}.",
        "{friend} wished for a {colour} {object}, and one {morning} {hero} decided to find one.",
        paragraph=True,
    ),
    stage(
        "{hero.He} went to {place} to buy it.",
        "At {place}, {helper} was selling just such a thing.",
        "{hero.He} walked all the way to {place} to look for one.",
    ),
    stage(
        "On the way back {storm} came, and {hero} had to wait {hiding}.",
        "But then {storm} came up, and {hero.he} hid {hiding} until it was over.",
        "{hero.He} carried the {object} home with great care, past {storm} and many puddles.",
    ),
    stage(
        "At last {hero.he} knocked at the door of {friend}.",
        "When {hero} finally came to {friend}, {hero.he} was tired but happy.",
        paragraph=True,
    ),
    stage(
        '"A {colour} {object}!" cried {friend}. "It is just what I wanted."',
        '"This {object} is for you," said {hero}, and {friend} smiled from ear to ear.',
        '{friend} took the {colour} {object} and said, "Thank you, {hero}!"',
    ),
    stage(
        "Then they ate {food} together until it was dark.",
        "They shared some {food} and laughed all evening.",
        probability=0.7,
    ),
    stage(
        "And {friend} kept the {colour} {object} for many years.",
        "From then on {friend} played with the {object} every day, and {hero} was glad.",
        "{hero} and {friend} stayed friends for ever.",
    ),
)

_STORM: tuple[Stage, ...] = (
    _OPENING,
    stage(
        "One {morning} {hero} and {hero.his} friend {friend} went to {place}.",
        "One {morning} {hero.he} set out for {place} with {hero.his} friend {friend}.",
    ),
    stage(
        "{friend} carried a basket full of {food}, and {hero} carried a {colour} {object}.",
        "They took some {food} and a {colour} {object} with them.",
    ),
    stage(
        "They had hardly come to {place} when {storm} began.",
        "Suddenly {storm} came over {place}, and they could not see the way.",
        "While they were playing, {storm} came from the north.",
        paragraph=True,
    ),
    stage(
        '"What shall we do?" asked {friend}.',
        '"I am afraid," said {friend}.',
        '"We must find shelter," said {friend}.',
        probability=0.8,
    ),
    stage(
        '"Come with me," said {hero}. "We can hide {hiding}."',
        "{hero} took {friend} by the hand and they hid {hiding}.",
        "Then {hero} remembered a dry spot {hiding}, and they ran there together.",
    ),
    stage(
        "There they ate the {food} and told each other stories.",
        "They shared the {food} and sang songs until they were no longer afraid.",
        "They wrapped the {object} in a coat and ate all the {food}.",
    ),
    stage(
        "When the sun came out again, {hero} and {friend} walked home.",
        "At last the sky was clear, and {friend} and {hero} went home hand in hand.",
        paragraph=True,
    ),
    stage(
        '"We forgot the {colour} {object}!" cried {friend}, so they ran back and found it {hiding}.',
        "The {colour} {object} was safe and dry, and so were they.",
        probability=0.6,
    ),
    stage(
        "They never forgot that day at {place}.",
        '"It was the best day of all," said {hero}, and {friend} agreed.',
    ),
)

_TREASURE: tuple[Stage, ...] = (
    _OPENING,
    stage(
        "One {morning} {hero.he} found an old map {hiding}.",
        "One {morning} {helper} gave {hero.him} an old map that had been {hiding}.",
    ),
    stage(
        "The map showed the way to {place}.",
        'On the map was a cross and the words "Dig at {place}".',
    ),
    stage(
        "{hero} did not want to go alone, so {hero.he} asked {friend} to come along.",
        '"Will you come with me to {place}?" {hero} asked {hero.his} friend {friend}.',
        paragraph=True,
    ),
    stage(
        '"Of course," said {friend}, and they left at once.',
        "{friend} brought some {food} for the way.",
        "{friend} was a little afraid, but said yes.",
    ),
    stage(
        "At {place} they dug and dug until they hit something hard.",
        "It was a long walk to {place}, and there they began to dig.",
    ),
    stage(
        "It was a chest, and in the chest lay a {colour} {object}.",
        "Deep in the ground they found a {colour} {object}.",
        paragraph=True,
    ),
    stage(
        '"It belongs to both of us," said {hero} to {friend}.',
        '"You found the map, {hero}," said {friend}, "so the {object} is yours."',
        "{hero} let {friend} hold the {object} first.",
    ),
    stage(
        "They put the map back where it had been, {hiding}, for somebody else to find.",
        "The map is still {hiding}, if you want to look for it.",
        probability=0.6,
    ),
    stage(
        "And every year they go back to {place} and remember the {colour} {object}.",
        "To this day {hero} and {friend} share the {colour} {object}.",
    ),
)

_BUILDER: tuple[Stage, ...] = (
    _OPENING,
    stage(
        "One {morning} {hero} wanted to make a {colour} {object} all by {hero.himself}.",
        'One {morning} {hero.he} said, "I am going to make a {colour} {object}."',
    ),
    stage(
        "{hero.He} worked all day at {place}.",
        "{hero.He} took {hero.his} tools to {place} and began.",
    ),
    stage(
        "But the {object} broke, and {hero} had to begin again.",
        "But whatever {hero.he} tried, the {object} would not hold together.",
        paragraph=True,
    ),
    stage(
        '"It is no use," said {hero}.',
        "{hero} was angry and wanted to stop.",
        probability=0.7,
    ),
    stage(
        "Just then {helper} came to {place} and watched {hero.him}.",
        "{hero} asked {helper} for help.",
    ),
    stage(
        '"Slowly," said the {helper.noun}. "First eat some {food}, and then try once more."',
        'The {helper.noun} smiled and said, "Good work takes time. Have some {food} first."',
    ),
    stage(
        "So {hero} ate some {food} and tried again.",
        "{hero} did what the {helper.noun} had said.",
        paragraph=True,
    ),
    stage(
        "This time the {object} was strong, and it was as {colour} as {hero.he} had wished.",
        "And in the evening a fine {colour} {object} was ready.",
    ),
    stage(
        '"I made it with the help of the {helper.noun}," {hero} told everybody.',
        "{hero} gave the {object} to the {helper.noun}, and made another one the next day.",
        "Ever since, when something is hard, {hero} thinks of the {helper.noun} and tries once more.",
    ),
)

_RESCUE: tuple[Stage, ...] = (
    _OPENING,
    stage(
        "One {morning} {hero.he} heard somebody calling for help near {place}.",
        "One {morning}, on the way to {place}, {hero} heard a small voice.",
    ),
    stage(
        "It was {friend}, who was stuck {hiding}.",
        '"Help me!" cried {friend}, who had fallen and lay {hiding}.',
    ),
    stage(
        '"Do not be afraid, {friend}," said {hero}.',
        '"I will help you, {friend}," {hero} called.',
        "{hero} did not know what to do at first.",
        probability=0.8,
    ),
    stage(
        "{hero.He} had nothing with {hero.him} but a {colour} {object}.",
        "In {hero.his} bag there was only a {colour} {object}.",
        paragraph=True,
    ),
    stage(
        "With the {object} {hero.he} made so much noise that {helper} came running.",
        "{hero.He} waved the {colour} {object} until {helper} saw it and came.",
    ),
    stage(
        "Together {hero} and the {helper.noun} pulled {friend} out.",
        "The {helper.noun} was strong, and soon {friend} was free.",
    ),
    stage(
        '"You saved me," said {friend} to {hero}.',
        '"Thank you, {hero}, and thank you too," said {friend} to the {helper.noun}.',
        paragraph=True,
    ),
    stage(
        "At home {friend} gave them {food}, as much as they could eat.",
        "They all went home and had some {food}.",
        probability=0.7,
    ),
    stage(
        "Since that day {friend} always walks around the spot {hiding}.",
        "Since that day {hero} never goes to {place} without the {colour} {object}.",
        "And the {helper.noun} still tells the story of the {colour} {object}.",
    ),
)

STORIES = Grammar(
    slots=SLOTS,
    plots={
        "lost": _LOST,
        "gift": _GIFT,
        "storm": _STORM,
        "treasure": _TREASURE,
        "builder": _BUILDER,
        "rescue": _RESCUE,
    },
    distinct=DISTINCT,
)
