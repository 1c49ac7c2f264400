"""Several tasks at once: which edges to remove so that some tasks go and others stay."""

from gatewise.gates.reconciliation.smallest_removal import Reconciliation, reconcile
from gatewise.gates.reconciliation.trials import TriedRemoval, other_removals, try_removals

__all__ = ["Reconciliation", "TriedRemoval", "other_removals", "reconcile", "try_removals"]
