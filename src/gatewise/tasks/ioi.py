"""Indirect object identification: "When Mary and John went to the store, John gave a drink to" -> Mary.

The corruption replaces the repeated subject by a third name, so that nothing tells the first two apart. With
`corruption="all-names"` three other names stand for all three: also what heads do before the subject then changes.
Both have the same clean prompts.
"""

from __future__ import annotations

import random

from gatewise.errors import GatewiseError
from gatewise.tasks._recipe import Draw, Recipe, words
from gatewise.tasks.encoding import Encoder
from gatewise.tasks.example import Example

# {first} and {second} are introduced, {subject} is one of them again. A name never opens the sentence: without a
# space before it, it would be another token in most vocabularies. Objects begin with a consonant, to follow "a".
TEMPLATES = (
    "When {first} and {second} went to the {place}, {subject} gave a {object} to",
    "After {first} and {second} walked through the {place}, {subject} handed a {object} to",
    "While {first} and {second} were waiting at the {place}, {subject} passed the {object} to",
    "Then {first} and {second} met near the {place}, and {subject} offered a {object} to",
    "Yesterday {first} and {second} visited the {place}, where {subject} offered a {object} to",
    "Last week {first} and {second} spent a long day at the {place}, so {subject} gave a {object} to",
    "On the way to the {place}, {first} and {second} took a break, and {subject} showed the {object} to",
    "In the morning {first} and {second} cleaned the {place}, and {subject} lent a {object} to",
    "Once {first} and {second} got lost behind the {place}, {subject} decided to give the {object} to",
    "As soon as {first} and {second} left the {place}, {subject} handed the {object} to",
    "Before {first} and {second} closed the {place}, {subject} lent a {object} to",
    "At the {place}, {first} and {second} had an argument, and later {subject} sent a {object} to",
    "The {place} was quiet until {first} and {second} came in and {subject} gave the {object} to",
    "People say that {first} and {second} worked at the {place}, and that {subject} promised a {object} to",
    "Today {first} and {second} were alone in the {place}, and {subject} passed a {object} to",
    "There was snow on the {place} when {first} and {second} arrived, and {subject} gave a {object} to",
)
NAMES = words(
    """Mary John Alice Tom James Anna Peter Laura Paul Sarah Mark Emma David Kate Simon Julia Jack Rachel Adam Lisa
    Kevin Jane Martin Amy Robert Helen Michael Susan Daniel Maria George Linda Henry Rose Frank Ruth Charles Grace
    Brian Karen Eric Nancy Steve Diana Scott Emily Andrew Claire Thomas Victoria Richard Elizabeth William Jennifer
    Joseph Lucy Edward Sandra Jason Michelle Ryan Nicole Justin Angela Aaron Jessica Patrick Amanda Alex Christine
    Matthew Rebecca"""
)
PLACES = words(
    """store park school garden station restaurant library office market hospital beach museum bakery church hotel
    theater farm harbor bridge kitchen"""
)
OBJECTS = words(
    """drink book ring letter ticket basket pen gift key phone map coat flower sandwich camera coin ball lamp watch
    hat bottle present"""
)


def prepare(encoder: Encoder, corruption: str = "second-name") -> Draw:
    """Return a function that draws examples with names that are single tokens."""
    names = [name.strip() for name in encoder.single_tokens([f" {name}" for name in NAMES])]
    needed = 5 if corruption == "all-names" else 3
    if len(names) < needed:
        raise GatewiseError(
            f"ioi needs at least {needed} names that are one token each; this tokenizer has {len(names)} of our "
            f"{len(NAMES)}. Bring your own pairs as a .csv or .jsonl file."
        )

    def draw(rng: random.Random) -> Example:
        indirect_object, subject, third = rng.sample(names, 3)
        first, second = rng.choice([(indirect_object, subject), (subject, indirect_object)])  # ABB A or BAB A
        template, location, gift = rng.choice(TEMPLATES), rng.choice(PLACES), rng.choice(OBJECTS)

        def prompt(first: str, second: str, subject: str) -> str:
            return template.format(first=first, second=second, subject=subject, place=location, object=gift)

        clean, corrupted = prompt(first, second, subject), prompt(first, second, third)
        if corruption == "all-names":  # its own randomness: the clean prompts are those of the other corruption
            corrupted = prompt(*random.Random(clean).sample([name for name in names if name not in (first, second)], 3))
        return Example(clean, corrupted, (f" {indirect_object}",), (f" {subject}",), template)

    return draw


RECIPE = Recipe(
    "ioi",
    "indirect object: who is the drink given to",
    prepare,
    {"corruption": ("second-name", "all-names")},
    TEMPLATES,
)
