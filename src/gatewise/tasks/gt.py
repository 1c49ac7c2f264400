"""Greater than: "The war lasted from the year 1517 to the year 15" -> a two-digit number above 17.

The corruption sets the two digits to 01. How a year is cut into tokens decides what the answers are:
- two-digit pieces (15|17): correct are the larger two-digit numbers, incorrect the smaller ones and the year itself;
- single digits (1|5|1|7): correct are the larger tens digits, incorrect the smaller ones; the same digit is neither.
"""

from __future__ import annotations

import random

from gatewise.errors import GatewiseError
from gatewise.tasks._recipe import Draw, Recipe, words
from gatewise.tasks.encoding import Encoder
from gatewise.tasks.example import Example

PROMPT = "The {noun} lasted from the year {century}{year} to the year {century}"
CENTURIES = tuple(range(11, 18))
CORRUPTED_YEAR = "01"
NOUNS = words(
    """war siege reign famine drought plague truce alliance voyage expedition rebellion revolt occupation blockade
    campaign conflict dispute feud quarrel trial crusade pilgrimage journey tour exile imprisonment captivity regency
    dynasty empire kingdom republic regime government rule administration partnership friendship marriage engagement
    romance affair collaboration cooperation negotiation investigation inquiry search hunt experiment study survey
    project programme construction restoration renovation excavation harvest festival fair celebration ceremony
    tournament contest competition season strike boycott protest uprising riot unrest crisis depression recession
    boom decline revival renaissance reform revolution transition migration settlement colonization invasion conquest
    raid attack assault battle bombardment retreat advance pursuit standoff stalemate ceasefire peace emergency
    epidemic outbreak illness recovery treatment apprenticeship training education career service tenure term
    presidency leadership mission assignment operation ban embargo monopoly contract lease loan debt charter
    silence absence delay pause interval period era"""
)


def prepare(encoder: Encoder) -> Draw:
    """Return a function that draws examples of those centuries whose years the tokenizer cuts in a way that we know."""
    by_century = {century: _century(encoder, century) for century in CENTURIES}
    draws = [draw_century for draw_century in by_century.values() if draw_century is not None]
    if not draws:
        year = "year 1517"
        pieces = [encoder.tokenizer.decode([token]) for token in encoder.tokens([year])[0]]
        raise GatewiseError(
            f"gt needs a tokenizer that cuts years into two-digit pieces (15|17) or single digits (1|5|1|7); this one "
            f"cuts {year!r} into {pieces}. Bring your own pairs as a .csv or .jsonl file."
        )
    return lambda rng: rng.choice(draws)(rng)


def _century(encoder: Encoder, century: int) -> Draw | None:
    """Draws examples of one century, or None if the tokenizer cuts its years in neither of the two ways."""
    prompt = PROMPT.format(noun="war", century=century, year=CORRUPTED_YEAR)
    two_digits = encoder.single_tokens([f"{year:02d}" for year in range(100)], prompt)
    if CORRUPTED_YEAR in two_digits and len(two_digits) > 10:
        return _two_digit_draw(century, two_digits)
    digits = encoder.single_tokens([str(digit) for digit in range(10)], prompt)
    if len(digits) == 10 and _goes_digit_by_digit(encoder, prompt):
        return _single_digit_draw(century)
    return None


def _goes_digit_by_digit(encoder: Encoder, prompt: str) -> bool:
    digit, number = encoder.continuations(prompt, ["1", "17"])
    return digit is not None and number is not None and len(number) == 2 and number[0] == digit[0]


def _two_digit_draw(century: int, answers: list[str]) -> Draw:
    """`answers`: the two-digit numbers that are one token after the century, in rising order."""
    years = [year for year in answers if CORRUPTED_YEAR < year < answers[-1]]

    def draw(rng: random.Random) -> Example:
        year = rng.choice(years)
        larger = tuple(answer for answer in answers if answer > year)
        smaller = tuple(answer for answer in answers if answer <= year)
        return _example(rng.choice(NOUNS), century, year, larger, smaller)

    return draw


def _single_digit_draw(century: int) -> Draw:
    def draw(rng: random.Random) -> Example:
        tens, ones = rng.randint(1, 8), rng.randint(0, 9)  # at tens 0 nothing is incorrect, at 9 nothing correct
        larger = tuple(str(digit) for digit in range(tens + 1, 10))
        smaller = tuple(str(digit) for digit in range(tens))
        return _example(rng.choice(NOUNS), century, f"{tens}{ones}", larger, smaller)

    return draw


def _example(noun: str, century: int, year: str, correct: tuple[str, ...], incorrect: tuple[str, ...]) -> Example:
    clean = PROMPT.format(noun=noun, century=century, year=year)
    corrupted = PROMPT.format(noun=noun, century=century, year=CORRUPTED_YEAR)
    return Example(clean, corrupted, correct, incorrect)


RECIPE = Recipe("gt", "greater than: a war ends in a later year than it began", prepare)
