"""Is it this task's circuit? Confidence under resampled pairs, specificity across tasks, and sub-mechanisms.

What needs torch is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise._lazy import imported_when_used

if TYPE_CHECKING:
    from gatewise.specificity.confidence import Confidence as Confidence
    from gatewise.specificity.confidence import resample_circuit as resample_circuit
    from gatewise.specificity.confidence import resample_scores as resample_scores

_NAMES = {"confidence": "Confidence resample_circuit resample_scores"}  # of the package, by where they are defined
__all__ = sorted(name for names in _NAMES.values() for name in names.split())
__getattr__ = imported_when_used(__name__, _NAMES)
