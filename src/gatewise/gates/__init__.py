"""Gates: AND, OR and ADDER, read off circuits of both directions and tested by intervention."""

from gatewise.gates._backups import Backup, backups, complete
from gatewise.gates.discovery import Agreement, find_gates, label_agreement
from gatewise.gates.labels import Gate, Gates, GroupGate, split_gates
from gatewise.gates.minimal import MinimalCheck, check_minimal
from gatewise.gates.programs.prediction import Prediction, predict
from gatewise.gates.reconciliation.reconcile import Reconciliation, reconcile
from gatewise.gates.testing.gate_test import Interaction, interaction
from gatewise.gates.testing.member_curve import MemberCurve, member_curve
from gatewise.gates.testing.pair_tables import labels_by_test, truth_tables
from gatewise.gates.testing.partners import Partners, partners
from gatewise.gates.testing.replication import Replication, replicate
from gatewise.gates.testing.search import Interactions, find_interactions

__all__ = [
    "Agreement",
    "Backup",
    "Gate",
    "Gates",
    "GroupGate",
    "Interaction",
    "Interactions",
    "MemberCurve",
    "MinimalCheck",
    "Partners",
    "Prediction",
    "Reconciliation",
    "Replication",
    "backups",
    "check_minimal",
    "complete",
    "find_gates",
    "find_interactions",
    "interaction",
    "label_agreement",
    "labels_by_test",
    "member_curve",
    "partners",
    "predict",
    "reconcile",
    "replicate",
    "split_gates",
    "truth_tables",
]
