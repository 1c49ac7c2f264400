"""Gates: AND, OR and ADDER, read off circuits of both directions and tested by intervention."""

from gatewise.gates.backups import Backup, add_backups, find_backups
from gatewise.gates.discovery import Agreement, find_gates, label_agreement
from gatewise.gates.labels import Gate, Gates, GroupGate, label_gates
from gatewise.gates.minimal import MinimalCheck, check_minimal
from gatewise.gates.programs.prediction import Prediction, predict
from gatewise.gates.testing.gate_test import GateTest, test_gate
from gatewise.gates.testing.member_curve import MemberCurve, member_curve
from gatewise.gates.testing.pair_tables import labels_by_test, test_edge_pairs
from gatewise.gates.testing.partners import EdgePartners, edge_partners
from gatewise.gates.testing.replication import Replication, replicate
from gatewise.gates.testing.search import GateTests, test_gates

__all__ = [
    "Agreement",
    "Backup",
    "EdgePartners",
    "Gate",
    "GateTest",
    "GateTests",
    "Gates",
    "GroupGate",
    "MemberCurve",
    "MinimalCheck",
    "Prediction",
    "Replication",
    "add_backups",
    "check_minimal",
    "edge_partners",
    "find_backups",
    "find_gates",
    "label_agreement",
    "label_gates",
    "labels_by_test",
    "member_curve",
    "predict",
    "replicate",
    "test_edge_pairs",
    "test_gate",
    "test_gates",
]
