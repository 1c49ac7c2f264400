"""Gates: AND, OR and ADDER, read off circuits of both directions and tested by intervention."""

from gatewise.logic.ablation import Ablations, ablate_gates
from gatewise.logic.alignment import Misalignment, MisalignmentCurve, Sampling, misalignment, misalignment_curve
from gatewise.logic.contribution import Contributions, gate_contributions
from gatewise.logic.curves import MemberCurve, member_curve
from gatewise.logic.discovery import Interactions, find_interactions
from gatewise.logic.find import Agreement, find_gates, label_agreement
from gatewise.logic.gates import Gate, Gates, GroupGate, split_gates
from gatewise.logic.interactions import Interaction, interaction
from gatewise.logic.minimal import MinimalCheck, check_minimal
from gatewise.logic.prediction import Prediction, predict
from gatewise.logic.reconciliation import Reconciliation, reconcile
from gatewise.logic.replication import Replication, replicate
from gatewise.logic.standins import Backup, backups, complete
from gatewise.logic.telescoping import Partners, partners
from gatewise.logic.truth import labels_by_test, truth_tables

__all__ = [
    "Ablations",
    "Agreement",
    "Backup",
    "Contributions",
    "Gate",
    "Gates",
    "GroupGate",
    "Interaction",
    "Interactions",
    "MemberCurve",
    "MinimalCheck",
    "Misalignment",
    "MisalignmentCurve",
    "Partners",
    "Prediction",
    "Reconciliation",
    "Replication",
    "Sampling",
    "ablate_gates",
    "backups",
    "check_minimal",
    "complete",
    "find_gates",
    "find_interactions",
    "gate_contributions",
    "interaction",
    "label_agreement",
    "labels_by_test",
    "member_curve",
    "misalignment",
    "misalignment_curve",
    "partners",
    "predict",
    "reconcile",
    "replicate",
    "split_gates",
    "truth_tables",
]
