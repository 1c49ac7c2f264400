"""One module per experiment, all in the same order: what is measured, then what becomes of it.

The docstring says what is asked and what a seed's value is; keys say what determines a value; functions of the lab and
a key measure it; `_measurements` enumerates them; `_judge` makes tables, rulings and figures of what was measured.
`experiment.py` explains the parts. A new experiment is a file with an `EXPERIMENT` and its name here.
"""

from importlib import import_module

from gatewise_paper.experiment import Experiment

_MODULES = (  # in the paper's order
    *("gate_ablation", "capabilities", "completeness", "redundancy", "faithfulness", "stability"),
    *("completeness_metrics", "misalignment", "graph_study", "contribution", "proportion", "unlearning", "cost"),
)
_EXPERIMENTS: list[Experiment] = [import_module(f"{__name__}.{module}").EXPERIMENT for module in _MODULES]
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _EXPERIMENTS}
