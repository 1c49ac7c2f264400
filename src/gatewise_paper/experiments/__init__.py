"""One module per experiment. A new one is a file with an `EXPERIMENT` and its name here."""

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
