"""gatewise finds logically complete circuits in language models.

Names are imported when first used, so that the command line answers before torch is loaded.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatewise.circuits import Circuit, Graph
    from gatewise.engine import run_circuit, run_circuits
    from gatewise.engine.effects import Effects, edge_effects
    from gatewise.engine.metrics import Metric
    from gatewise.engine.setting import Setting
    from gatewise.errors import GatewiseError
    from gatewise.evaluation import Evaluation, check_task, evaluate, knock_out
    from gatewise.logic import (
        Gates,
        Interaction,
        Interactions,
        backups,
        complete,
        find_gates,
        find_interactions,
        interaction,
        partners,
        reconcile,
        replicate,
        split_gates,
        truth_tables,
    )
    from gatewise.methods import Method, Scores, discover, score_edges
    from gatewise.models import Model, load_model, register_architecture
    from gatewise.report import investigate
    from gatewise.tasks import Pairs, Task, task

_HOME = {
    "Circuit": "circuits",
    "Effects": "engine.effects",
    "Evaluation": "evaluation",
    "Gates": "logic",
    "GatewiseError": "errors",
    "Graph": "circuits",
    "Interaction": "logic",
    "Interactions": "logic",
    "Method": "methods",
    "Metric": "engine.metrics",
    "Model": "models",
    "Pairs": "tasks",
    "Scores": "methods",
    "Setting": "engine.setting",
    "Task": "tasks",
    "check_task": "evaluation",
    "backups": "logic",
    "complete": "logic",
    "discover": "methods",
    "edge_effects": "engine.effects",
    "evaluate": "evaluation",
    "find_gates": "logic",
    "find_interactions": "logic",
    "interaction": "logic",
    "investigate": "report",
    "knock_out": "evaluation",
    "load_model": "models",
    "partners": "logic",
    "reconcile": "logic",
    "register_architecture": "models",
    "replicate": "logic",
    "run_circuit": "engine",
    "run_circuits": "engine",
    "score_edges": "methods",
    "split_gates": "logic",
    "task": "tasks",
    "truth_tables": "logic",
}
__all__ = [
    "Circuit",
    "Effects",
    "Evaluation",
    "Gates",
    "GatewiseError",
    "Graph",
    "Interaction",
    "Interactions",
    "Method",
    "Metric",
    "Model",
    "Pairs",
    "Scores",
    "Setting",
    "Task",
    "backups",
    "check_task",
    "complete",
    "discover",
    "edge_effects",
    "evaluate",
    "find_gates",
    "find_interactions",
    "interaction",
    "investigate",
    "knock_out",
    "load_model",
    "partners",
    "reconcile",
    "register_architecture",
    "replicate",
    "run_circuit",
    "run_circuits",
    "score_edges",
    "split_gates",
    "task",
    "truth_tables",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("gatewise")
    if name in _HOME:
        return getattr(import_module(f"gatewise.{_HOME[name]}"), name)
    raise AttributeError(f"module 'gatewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
