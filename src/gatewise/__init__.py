"""gatewise finds logically complete circuits in language models.

Names are imported when first used, so that the command line answers before torch is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatewise._lazy import imported_when_used

if TYPE_CHECKING:
    from gatewise.circuits import Circuit as Circuit, Graph as Graph
    from gatewise.compute import Compute as Compute
    from gatewise.engine import run_circuit as run_circuit, run_circuits as run_circuits
    from gatewise.engine.patching.exact_effects import ExactEffects as ExactEffects, exact_effects as exact_effects
    from gatewise.engine.metrics import Metric as Metric
    from gatewise.engine.setting import Setting as Setting
    from gatewise.errors import GatewiseError as GatewiseError
    from gatewise.evaluation import (
        Evaluation as Evaluation,
        check_task as check_task,
        evaluate as evaluate,
        ablate as ablate,
    )
    from gatewise.gates import (
        Gates as Gates,
        GateTest as GateTest,
        GateTests as GateTests,
        find_backups as find_backups,
        add_backups as add_backups,
        find_gates as find_gates,
        test_gates as test_gates,
        test_gate as test_gate,
        edge_partners as edge_partners,
        predict as predict,
        reconcile as reconcile,
        replicate as replicate,
        label_gates as label_gates,
        test_edge_pairs as test_edge_pairs,
    )
    from gatewise.methods import Method as Method, Scores as Scores, discover as discover
    from gatewise.methods import discover_all as discover_all, score_edges as score_edges
    from gatewise.models import Model as Model, load_model as load_model, register_architecture as register_architecture
    from gatewise.report import make_report as make_report
    from gatewise.tasks import Pairs as Pairs, Task as Task, task as task

_NAMES = {  # of the package, by where they are defined
    "circuits": "Circuit Graph",
    "compute": "Compute",
    "engine": "run_circuit run_circuits",
    "engine.patching.exact_effects": "ExactEffects exact_effects",
    "engine.metrics": "Metric",
    "engine.setting": "Setting",
    "errors": "GatewiseError",
    "evaluation": "Evaluation ablate check_task evaluate",
    "gates": "Gates GateTest GateTests add_backups edge_partners find_backups find_gates label_gates predict reconcile "
    "replicate test_edge_pairs test_gate test_gates",
    "methods": "Method Scores discover discover_all score_edges",
    "models": "Model load_model register_architecture",
    "report": "make_report",
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
