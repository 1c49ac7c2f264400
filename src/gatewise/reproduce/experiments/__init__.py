"""One module per experiment. A new one is a file with an `EXPERIMENT` and its name here."""

from gatewise.reproduce.contract import Experiment
from gatewise.reproduce.experiments import completeness, faithfulness, graph_study

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT for module in (completeness, faithfulness, graph_study)
}
