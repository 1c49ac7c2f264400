"""Every table and figure of the paper, by one command: `gatewise reproduce`.

contract.py      what an experiment is: what to measure, and what becomes of it: tables, figures, rulings
claims.py        verdicts: what becomes of a claim, by values of seeds
calibration.py   which sizes verdicts are about, chosen beforehand; calibration.json has them
presets.py       how large: `quick` (tiny), `laptop` (gemma3-270m), `smollm2`, `paper`; what is decided beforehand
lab.py           what experiments share: model, pairs, circuits, what is measured; all of it through the run store
tested.py        gates by test, which stand beside those of the split
experiments/     one module each
figures.py       one visual language
words.py         what things are called, and numbers in words
runner.py        forecast, searches and measurements side by side, then verdicts
summary.py       the Markdown and the HTML page
roles.py         what heads do in the IOI task
toy.py           the paper's Table 1, for `gatewise toy`
ground_truth.py  methods and rules against planted models, for `gatewise truth`
"""

from gatewise.paper.claims import Ruling
from gatewise.paper.contract import Experiment, Measurement, Result, Search, Table
from gatewise.paper.presets import PRESETS, Preset
from gatewise.paper.runner import reproduce

__all__ = ["PRESETS", "Experiment", "Measurement", "Preset", "Result", "Ruling", "Search", "Table", "reproduce"]
