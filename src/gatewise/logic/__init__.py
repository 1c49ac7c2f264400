"""Gates: AND, OR and ADDER, read off circuits of both directions and tested by intervention."""

from gatewise.logic.find import Agreement, find_gates, label_agreement
from gatewise.logic.gates import Gate, Gates, split_gates
from gatewise.logic.truth import TruthTable, labels_by_test, truth_tables

__all__ = [
    "Agreement",
    "Gate",
    "Gates",
    "TruthTable",
    "find_gates",
    "label_agreement",
    "labels_by_test",
    "split_gates",
    "truth_tables",
]
