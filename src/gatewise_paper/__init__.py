"""Every table and figure of the paper, by one command: `gatewise reproduce`. The library never imports this package.

experiment.py        what an experiment is: what to measure, and what becomes of it: tables, figures, rulings
claims.py            verdicts: what becomes of a claim, by values of seeds
size_calibration.py  which sizes verdicts are about, chosen beforehand; size_calibration.json has them
presets.py           how large: `quick` (tiny), `laptop` (gemma3-270m), `smollm2`, `paper`; what is decided beforehand
lab.py               what experiments share: model, pairs, circuits, what is measured; all of it through the run store
tested_gates.py      gates by test, which stand beside those of the split
measures/            measures that only the paper uses
experiments/         one module each
figures.py           one visual language
naming.py            what things are called, and numbers in words
runner.py            forecast, searches and measurements side by side, then verdicts
summary.py           the Markdown and the HTML page
head_roles.py        what heads do in the IOI task
toy_models.py        the paper's Table 1, for `gatewise toy`
truth/               methods and rules against synthetic models, for `gatewise truth`
cli/                 the commands, registered by the entry points `gatewise.commands`
"""

help_panel = "Repeat the paper"  # the heading of its commands in `gatewise --help`
