"""Running circuits. One meaning, several speeds; the slow twin they are tested against lives with the tests."""

from gatewise.engine.metrics import Metric
from gatewise.engine.patching.exact_effects import ExactEffects, exact_effects
from gatewise.engine.running import last_logits, run_circuit, run_circuits
from gatewise.engine.setting import Setting

__all__ = ["ExactEffects", "Metric", "Setting", "exact_effects", "last_logits", "run_circuit", "run_circuits"]
