"""From a model and a task to a page that explains the circuit: `make_report` computes, `save` writes the files.

`investigation.py` runs the searches and the measures, `evidence.py` asks how far to trust them, `examples.py` reads
the prompts' probabilities, `nodes.py` looks at what nodes do, `verdicts.py` says in sentences what came out,
`data.py` packs it all as plain data, and `page.py` puts that data into one HTML file made of `assets/`.
"""

from gatewise.report.investigation import Report, make_report
from gatewise.report.page import write_page

__all__ = ["Report", "make_report", "write_page"]
