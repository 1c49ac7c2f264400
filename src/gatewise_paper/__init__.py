"""Every table and figure of the paper, by one command: `gatewise reproduce`. The library never imports this package.

experiment.py        what an experiment is: what to measure, and what becomes of it: tables, figures, rulings
claims.py            verdicts: what becomes of a claim, by values of seeds; what is declared beforehand
presets.py           how large: `quick` (tiny), `laptop` (gemma3-270m), `smollm2`, `paper`
sizes.py             how many edges circuits have
size_calibration.py  which sizes verdicts are about, chosen beforehand; size_calibration.json has them
lab.py               what experiments share: model, pairs, circuits, what is measured; all of it through the run store
experiments/         one module each, and what several of them share
tested_gates.py      gates by test, which stand beside those by set difference
bottlenecks.py       edges that alone cost much of a task
head_roles.py        what heads do in the IOI task
unlearning_data.py   what is to be forgotten, and what to be kept
measures/            measures that only the paper uses
printed_numbers.json the paper's own numbers
naming.py            what things are called, and numbers in words
figures.py           one visual language
runner.py            `reproduce`: forecast, searches and measurements side by side, then verdicts
records.py           what a reproduction has in its folder
summary.py           the Markdown and the HTML page
toy_models.py        the paper's Table 1, for `gatewise toy`
truth/               methods and rules against synthetic models, for `gatewise truth`
cli/                 the commands, registered by the entry points `gatewise.commands`
"""

help_panel = "Repeat the paper"  # the heading of its commands in `gatewise --help`
