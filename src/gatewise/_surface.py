"""The names that `import gatewise` gives, loaded when the first is used. All else is imported from its module."""

from gatewise.circuits import Circuit as Circuit, Graph as Graph
from gatewise.compute import Compute as Compute
from gatewise.engine import exact_effects as exact_effects, run_circuit as run_circuit
from gatewise.errors import GatewiseError as GatewiseError
from gatewise.evaluation import (
    ablate as ablate,
    attention as attention,
    direct_contributions as direct_contributions,
    evaluate as evaluate,
)
from gatewise.gates import Gates as Gates, find_gates as find_gates, test_gate as test_gate, test_gates as test_gates
from gatewise.methods import discover as discover, discover_all as discover_all, score_edges as score_edges
from gatewise.models import Model as Model, load_model as load_model
from gatewise.report import make_report as make_report
from gatewise.validity import resample_circuit as resample_circuit, specificity as specificity
from gatewise.tasks import Pairs as Pairs, Task as Task, task as task
