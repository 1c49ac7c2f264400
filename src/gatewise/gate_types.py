"""The kinds of gates: their names, the sign that joins the senders of one, and the colour that it has everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

GateType = Literal["AND", "OR", "ADDER"]
GATE_TYPES: tuple[GateType, ...] = ("AND", "OR", "ADDER")
TestedLabel = Literal["AND", "OR", "ADDER", "XOR-like", "inhibiting", "none"]
TESTED_LABELS: tuple[TestedLabel, ...] = (*GATE_TYPES, "XOR-like", "inhibiting", "none")
GATE_SIGNS: Mapping[str, str] = {"AND": "&", "OR": "|", "ADDER": "+"}
# Blue, green and red as in the paper, from Okabe and Ito's palette, which people with any colour vision tell apart.
GATE_COLOURS: Mapping[str, str] = {"AND": "#0072B2", "OR": "#009E73", "ADDER": "#D55E00"}
GATE_COLOURS_ON_DARK: Mapping[str, str] = {"AND": "#56B4E9", "OR": "#35C79D", "ADDER": "#F28A4B"}
