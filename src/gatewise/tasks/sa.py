"""Reflexive (anaphor) agreement: "The girls insulted" -> themselves, not herself.

The corruption flips the noun's number.
Determiners fit both numbers, so that the noun alone says which pronoun is correct and both sides are good English.
`number` says which side is clean: the plural, the singular, or either at random. The mixed form is symmetric: noising
and denoising are the same thing on it, so no circuit can have AND or OR gates there.
"""

from __future__ import annotations

import random

from gatewise.errors import GatewiseError
from gatewise.tasks._recipe import Draw, Recipe, word_pairs, words
from gatewise.tasks.encoding import Encoder
from gatewise.tasks.example import Example

DETERMINERS = ("The", "The other", "The young", "The old", "Some", "My", "Your", "Our", "Their", "No")
FEMALE_NOUNS = word_pairs(
    """girl/girls woman/women mother/mothers sister/sisters daughter/daughters queen/queens
    actress/actresses waitress/waitresses aunt/aunts princess/princesses lady/ladies bride/brides
    grandmother/grandmothers niece/nieces nun/nuns goddess/goddesses widow/widows wife/wives duchess/duchesses
    witch/witches girlfriend/girlfriends mom/moms"""
)
MALE_NOUNS = word_pairs(
    """boy/boys man/men father/fathers brother/brothers son/sons king/kings actor/actors waiter/waiters
    uncle/uncles prince/princes gentleman/gentlemen groom/grooms grandfather/grandfathers nephew/nephews monk/monks
    god/gods husband/husbands wizard/wizards duke/dukes cowboy/cowboys boyfriend/boyfriends dad/dads"""
)
VERBS = words(
    """insulted hurt helped admired blamed praised described defended embarrassed hated loved questioned surprised
    introduced trusted impressed taught protected washed respected doubted criticized accused entertained fooled
    saved hid dressed prepared punished forgave"""
)
PLURAL_PRONOUN = "themselves"
NOUNS = tuple((*pair, "herself") for pair in FEMALE_NOUNS) + tuple((*pair, "himself") for pair in MALE_NOUNS)


def prepare(encoder: Encoder, number: str = "plural") -> Draw:
    """Return a function that draws examples; `number` is that of the clean side."""
    known = encoder.single_tokens([f" {word}" for word in (PLURAL_PRONOUN, "herself", "himself")], "The girls helped")
    nouns = [noun for noun in NOUNS if f" {noun[2]}" in known]
    if f" {PLURAL_PRONOUN}" not in known or not nouns:
        raise GatewiseError(
            f"sa needs ' {PLURAL_PRONOUN}' and ' herself' or ' himself' as single tokens; of these this tokenizer has "
            f"{known}. Bring your own pairs as a .csv or .jsonl file."
        )

    def draw(rng: random.Random) -> Example:
        singular, plural, pronoun = rng.choice(nouns)
        determiner, verb = rng.choice(DETERMINERS), rng.choice(VERBS)
        of_singular = (f"{determiner} {singular} {verb}", f" {pronoun}")
        of_plural = (f"{determiner} {plural} {verb}", f" {PLURAL_PRONOUN}")
        # Drawn in any case, so that all three forms have the same sentences.
        clean, corrupted = rng.choice([(of_singular, of_plural), (of_plural, of_singular)])
        if number != "mixed":
            clean, corrupted = (of_plural, of_singular) if number == "plural" else (of_singular, of_plural)
        return Example(clean[0], corrupted[0], (clean[1],), (corrupted[1],))

    return draw


RECIPE = Recipe(
    "sa",
    "agreement: themselves after a plural noun, herself or himself after a singular one",
    prepare,
    {"number": ("plural", "singular", "mixed")},
)
