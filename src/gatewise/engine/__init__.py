"""Running circuits. One meaning, several speeds; the slow twin they are tested against lives with the tests."""

from gatewise.engine.running import last_logits, run_circuit, run_circuits

__all__ = ["last_logits", "run_circuit", "run_circuits"]
