"""Types of gates: their names, the sign that joins the senders of one, and the colour that it has everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

GateType = Literal["AND", "OR", "ADDER"]
GATE_TYPES: tuple[GateType, ...] = ("AND", "OR", "ADDER")
TestedLabel = Literal["AND", "OR", "ADDER", "XOR-like", "inhibiting", "mixed", "undecided"]
TESTED_LABELS: tuple[TestedLabel, ...] = (*GATE_TYPES, "XOR-like", "inhibiting", "mixed", "undecided")
GATE_SIGNS: Mapping[str, str] = {"AND": "&", "OR": "|", "ADDER": "+"}
# Which direction found an edge, and its set-difference label. They differ in colour: found by noising is no AND yet.
FOUND_BY: Mapping[str, str] = {"ns": "noising only", "dn": "denoising only", "both": "both directions"}
SPLIT: Mapping[str, GateType] = {"ns": "AND", "dn": "OR", "both": "ADDER"}
FOUND_COLOURS: Mapping[str, str] = {"ns": "#B7791F", "dn": "#A23B8F", "both": "#4A5568"}
FOUND_COLOURS_ON_DARK: Mapping[str, str] = {"ns": "#E8B04B", "dn": "#DE8BD0", "both": "#A9B4C4"}
# Blue, green and red as in the paper, from Okabe and Ito's palette, which people with any colour vision tell apart.
GATE_COLOURS: Mapping[str, str] = {"AND": "#0072B2", "OR": "#009E73", "ADDER": "#D55E00"}
GATE_COLOURS_ON_DARK: Mapping[str, str] = {"AND": "#56B4E9", "OR": "#35C79D", "ADDER": "#F28A4B"}
