"""From a model and a task to a page that explains the circuit: `make_report` computes, `Report.save` writes the files.

Data flow one way: `making.py` searches and measures, with `trust.py` (how far to trust it) and `node_behaviour.py`
(what nodes do); `report.py` holds what was found; `headline.py` says it in sentences, `data.py` as plain data, and
`page.py` puts that data into one HTML file made of `assets/`.
"""

from gatewise.report.making import make_report
from gatewise.report.report import Report

__all__ = ["Report", "make_report"]
