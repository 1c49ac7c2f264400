"""One module per experiment, all in the same order: what is measured, then what becomes of it.

The docstring says what is asked and what a seed's value is; keys say what determines a value; functions of the lab and
a key measure it; `_measurements` enumerates them; `_judge` makes tables, rulings and figures of what was measured.
`experiment.py` explains the parts. A new experiment is a file with an `EXPERIMENT` and its name here.
"""

from gatewise_paper.experiment import Experiment
from gatewise_paper.experiments import (
    capabilities,
    completeness,
    completeness_metrics,
    contribution,
    cost,
    faithfulness,
    gate_ablation,
    graph_study,
    misalignment,
    proportion,
    redundancy,
    stability,
    unlearning,
)

_MODULES = (  # in the paper's order
    gate_ablation,
    capabilities,
    completeness,
    redundancy,
    faithfulness,
    stability,
    completeness_metrics,
    misalignment,
    graph_study,
    contribution,
    proportion,
    unlearning,
    cost,
)
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}
