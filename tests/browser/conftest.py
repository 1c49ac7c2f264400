"""A real browser: Debian's chromium, driven by Playwright. Without them these tests are skipped, but fail under CI."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gatewise as gw
from gatewise.report import Report, make_report
from gatewise.report.headline import next_steps
from gatewise.report.page import write_page

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _missing() -> str | None:
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: make browser, or pip install -c constraints.txt -e '.[browser]'"
    if shutil.which("chromium") is None:
        return "chromium is not installed: make browser, or apt-get install chromium"
    return None


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if (reason := _missing()) is not None:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(f"{reason} (required under CI)")
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        launched = play.chromium.launch(executable_path=shutil.which("chromium"), args=_FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def found() -> Report:
    """With tested gates, and more edges than a page opens with."""
    model = gw.load_model("tiny")
    task = gw.task("ioi", model, examples=16)
    found = make_report(model, task, edges=64, random_circuits=1)
    tested = gw.test_gates(model, task.train, test=task.test, of=found.gates.sound)
    return replace(found, gate_tests=tested)


@pytest.fixture(scope="session")
def _data(found: Report) -> dict[str, Any]:
    commands = [f"gatewise run tiny {dict(step.changes)}" for step in next_steps(found)]
    return {**found.page_data, "command": "gatewise run tiny {}", "next_commands": commands}


@pytest.fixture
def data(_data: dict[str, Any]) -> dict[str, Any]:
    """The report's data, to be changed at will."""
    copied: dict[str, Any] = json.loads(json.dumps(_data))
    return copied


class Opened:
    """A page, and everything that went wrong or left the file while it was open."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))  # type: ignore[func-returns-value]
        page.on("request", lambda request: self.requests.append(request.url))


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Write data as a report, open it from disk, and hand over the page; complaints fail the test at its end."""
    contexts, pages = [], []

    def opening(
        data: dict[str, Any], *, width: int = 1300, height: int = 900, scheme: str = "light", state: str = "edges=all"
    ) -> Any:
        path = tmp_path / "report.html"
        write_page(path, data)
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        context.set_default_timeout(8_000)
        contexts.append(context)
        opened = Opened(context.new_page())
        pages.append((opened, path))
        opened.page.goto(path.as_uri() + (f"#{state}" if state else ""))
        return opened.page

    yield opening
    for context in contexts:
        context.close()
    for opened, path in pages:
        assert opened.complaints == []
        assert {url.partition("#")[0] for url in opened.requests if not url.startswith("blob:")} == {path.as_uri()}
