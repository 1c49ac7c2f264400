"""One HTML file out of plain data: assets and data inlined, nothing fetched, nothing of the data read as markup.

The data stand in a script element of type application/json, with `<`, `>`, `&` and the line separators escaped, so that
no text in them can end the element. A Content-Security-Policy allows exactly the two inlined assets, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from gatewise.files import write_atomically
from gatewise.gate_types import FOUND_COLOURS, FOUND_COLOURS_ON_DARK, GATE_COLOURS, GATE_COLOURS_ON_DARK

_SCRIPTS = (
    "model.js", "dom.js", "layout.js", "graph.js", "export.js", "charts.js", "gates.js", "nodes.js", "panels.js",
    "url.js", "main.js",
)  # fmt: skip
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page(content: Mapping[str, Any]) -> str:
    """The whole report as HTML."""
    style = _colours() + _asset("report.css")
    parts = "\n".join(f"// {name}\n{_asset(name)}" for name in _SCRIPTS)
    script = f'"use strict";\n(() => {{\n{parts}\n}})();\n'
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; "
        f"base-uri 'none'; form-action 'none'"
    )
    filled = {
        "policy": html.escape(policy),
        "title": html.escape(str(content["title"])),
        "style": style,
        "script": script,
        "data": as_script_json(content),
    }
    pieces = []
    for piece in _asset("report.html").split("{{"):  # one pass: what is filled in is never searched for marks
        name, closed, rest = piece.partition("}}")
        pieces.append(filled[name] + rest if closed else piece)
    return "".join(pieces)


def write_page(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write the report to a file."""
    write_atomically(Path(path), page(content).encode())


def as_script_json(content: Any) -> str:
    """JSON that may stand in an HTML script element."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _colours() -> str:
    """Variables for the style: `--and`, `--ns` and so on, on light and on dark ground."""
    light, dark = {**GATE_COLOURS, **FOUND_COLOURS}, {**GATE_COLOURS_ON_DARK, **FOUND_COLOURS_ON_DARK}
    themes = {":root": light, ':root[data-theme="dark"]': dark}
    return "".join(
        f"{theme} {{ {' '.join(f'--{kind.lower()}: {colour};' for kind, colour in colours.items())} }}\n"
        for theme, colours in themes.items()
    )


def _asset(name: str) -> str:
    return (files("gatewise.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
