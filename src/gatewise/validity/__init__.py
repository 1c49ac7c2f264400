"""Is it this task's circuit? Confidence under resampled pairs, specificity across tasks, and sub-mechanisms.

What needs torch is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise._lazy import imported_when_used

if TYPE_CHECKING:
    from gatewise.validity.confidence import Confidence as Confidence
    from gatewise.validity.confidence import resample_circuit as resample_circuit
    from gatewise.validity.confidence import resample_scores as resample_scores
    from gatewise.validity.matrix import Specificity as Specificity
    from gatewise.validity.matrix import specificity as specificity
    from gatewise.validity.ordinary_text import text_pairs as text_pairs
    from gatewise.validity.parts import Part as Part
    from gatewise.validity.parts import matched_circuit as matched_circuit

_NAMES = {  # of the package, by where they are defined
    "confidence": "Confidence resample_circuit resample_scores",
    "matrix": "Specificity specificity",
    "ordinary_text": "text_pairs",
    "parts": "Part matched_circuit",
}
__all__ = sorted(name for names in _NAMES.values() for name in names.split())
__getattr__ = imported_when_used(__name__, _NAMES)
