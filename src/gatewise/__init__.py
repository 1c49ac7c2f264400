"""gatewise finds logically complete circuits in language models.

Names are imported when first used, so that the command line answers before torch is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatewise._lazy import imported_when_used

if TYPE_CHECKING:
    from gatewise.circuits import Circuit as Circuit, Graph as Graph
    from gatewise.engine import run_circuit as run_circuit, run_circuits as run_circuits
    from gatewise.engine.patching.exact_effects import Effects as Effects, edge_effects as edge_effects
    from gatewise.engine.metrics import Metric as Metric
    from gatewise.engine.setting import Setting as Setting
    from gatewise.errors import GatewiseError as GatewiseError
    from gatewise.evaluation import (
        Evaluation as Evaluation,
        check_task as check_task,
        evaluate as evaluate,
        knock_out as knock_out,
    )
    from gatewise.gates import (
        Gates as Gates,
        Interaction as Interaction,
        Interactions as Interactions,
        backups as backups,
        complete as complete,
        find_gates as find_gates,
        find_interactions as find_interactions,
        interaction as interaction,
        partners as partners,
        predict as predict,
        reconcile as reconcile,
        replicate as replicate,
        split_gates as split_gates,
        truth_tables as truth_tables,
    )
    from gatewise.methods import Method as Method, Scores as Scores, discover as discover, score_edges as score_edges
    from gatewise.models import Model as Model, load_model as load_model, register_architecture as register_architecture
    from gatewise.report import investigate as investigate
    from gatewise.tasks import Pairs as Pairs, Task as Task, task as task

_NAMES = {  # of the package, by where they are defined
    "circuits": "Circuit Graph",
    "engine": "run_circuit run_circuits",
    "engine.patching.exact_effects": "Effects edge_effects",
    "engine.metrics": "Metric",
    "engine.setting": "Setting",
    "errors": "GatewiseError",
    "evaluation": "Evaluation check_task evaluate knock_out",
    "gates": "Gates Interaction Interactions backups complete find_gates find_interactions interaction partners "
    "predict reconcile replicate split_gates truth_tables",
    "methods": "Method Scores discover score_edges",
    "models": "Model load_model register_architecture",
    "report": "investigate",
    "tasks": "Pairs Task task",
}
__all__ = sorted(name for names in _NAMES.values() for name in names.split())
_imported = imported_when_used(__name__, _NAMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("gatewise")
    return _imported(name)


def __dir__() -> list[str]:
    return sorted(__all__)
