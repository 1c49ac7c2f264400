"""The page: one file, nothing fetched, data that cannot become markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from gatewise.report.page import as_script_json, page, write_page

HOSTILE = "</script><script>alert(1)</script><!-- \"'& \u2028 \u2029 {{script}}"


def data_in(text: str) -> object:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_data_survive_as_they_are() -> None:
    data = {"title": HOSTILE, "list": [HOSTILE, 1.5, None], HOSTILE: True}
    assert data_in(page(data)) == data


@pytest.mark.parametrize("character", ["<", ">", "&", "\u2028", "\u2029"])
def test_no_character_can_end_the_script(character: str) -> None:
    assert character not in as_script_json({"a": character})
    assert json.loads(as_script_json({"a": character})) == {"a": character}


def test_half_a_character_does_not_break_the_file(tmp_path: Path) -> None:
    """A token may be half of a surrogate pair."""
    write_page(tmp_path / "report.html", {"title": "a", "text": "\ud83d"})
    assert (tmp_path / "report.html").read_text(encoding="utf-8")


def test_title_is_escaped() -> None:
    assert "<title>&lt;/script&gt;" in page({"title": HOSTILE})


def test_policy_allows_the_inlined_assets_only() -> None:
    text = page({"title": "a"})
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]  # type: ignore[index]
    assert policy.startswith("default-src &#x27;none&#x27;;")
    for tag in ("script", "style"):
        body = re.search(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)[1]  # type: ignore[index]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src &#x27;sha256-{digest}&#x27;" in policy


def test_nothing_is_fetched() -> None:
    text = page({"title": "a"})
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<link|<iframe|<img|@import|url\(|\bfetch\(|XMLHttpRequest|innerHTML|document\.write", text)


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError):
        page({"title": "a", "value": float("nan")})
