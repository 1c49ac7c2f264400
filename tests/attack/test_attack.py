"""A handful of the rounds of `make attack`."""

from __future__ import annotations

import os
import random

import pytest

if not hasattr(os, "mkfifo"):
    pytest.skip("there are no pipes with names", allow_module_level=True)

from attack.attack import attack_command, attack_store

pytestmark = pytest.mark.attack


def test_spoilt_stores_lose_nothing_else() -> None:
    ways = {attack_store(random.Random(number)) for number in range(60)}
    assert len(ways) >= 9


def test_commands_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = os.getcwd()
    try:
        for number in range(12):
            attack_command(random.Random(number))
    finally:
        os.chdir(before)
