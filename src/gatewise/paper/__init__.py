"""Every table and figure of the paper, by one command: `gatewise reproduce`.

contract.py      what an experiment is, and what it gives: tables, figures, verdicts
presets.py       how large: `quick` (tiny), `laptop` (smollm2-135m), `paper` (gpt2)
lab.py           what experiments share: model, pairs, circuits, their behaviour; all of it through the run store
experiments/     one module each
figures.py       one visual language
runner.py        forecast, searches side by side, then experiment by experiment
summary.py       the Markdown and the HTML page
"""

from gatewise.paper.contract import Experiment, Outcome, Table, Verdict
from gatewise.paper.presets import PRESETS, Preset
from gatewise.paper.runner import reproduce

__all__ = ["PRESETS", "Experiment", "Outcome", "Preset", "Table", "Verdict", "reproduce"]
