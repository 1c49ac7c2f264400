"""The documentation is a site that builds without a warning, on its own, and whose commands exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from gatewise.cli import main as cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMMAND: Any = typer.main.get_command(cli.app)
ANYWHERE = ("--help", "--debug", "--version", "--install-completion", "--show-completion")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return folder


def test_every_page_is_there(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).exists(), page.name


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|link rel="stylesheet")[^>]+(?:src|href)="(?:https?:)?//', text), (
            page.name
        )


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"(\S+\.md)$", menu, flags=re.MULTILINE))
    assert listed == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert yaml.safe_load(menu)["theme"]["font"] is False


def commands() -> list[tuple[str, str]]:
    """Every `gatewise ...` line in a block of shell code."""
    found = []
    for page in sorted(DOCS.glob("*.md")):
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            found += [(page.name, line) for line in block.splitlines() if line.startswith("gatewise ")]
    return found


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda text: text)
def test_commands_of_the_pages_parse(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command = COMMAND
    while getattr(command, "commands", None) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    with command.make_context("gatewise", words) as context:
        assert context.command is not COMMAND


def mentions() -> list[tuple[str, str]]:
    """Every `gatewise ...` in code of the pages and the README: indented, or within a line."""
    found = set()
    for page in sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]):
        text = page.read_text(encoding="utf-8")
        for line in re.findall(r"^ {4,}(gatewise [^`\n]+)$|`(gatewise [^`.][^`]*)`", text, flags=re.MULTILINE):
            found.add((page.name, " ".join("".join(line).partition("#")[0].split())))
    return sorted(found)


def test_commands_and_options_that_are_mentioned_exist() -> None:
    """Inside a sentence too, where a command may lack its arguments."""
    lines = mentions()
    assert len(lines) > 80
    for page, line in lines:
        command = COMMAND
        for word in line.split()[1:]:
            if word in (getattr(command, "commands", None) or {}):
                command = command.commands[word]
            elif word.startswith("--") and word not in ANYWHERE:
                options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
                assert word in options, f"{page}: {line}"
        assert command is not COMMAND or line.split()[1] in ANYWHERE, f"{page}: {line}"


def test_pictures_of_the_concepts_show_their_gates() -> None:
    for name, colour in (("and", "#0072b2"), ("or", "#009e73"), ("adder", "#d55e00")):
        picture = (DOCS / "img" / f"gate-{name}.svg").read_text(encoding="utf-8")
        style = re.search(r'id="A1-&gt;B">\s*<path[^>]*style="([^"]*)"', picture)
        assert style is not None
        assert colour in style[1]


def test_the_readmes_picture_is_what_its_caption_says() -> None:
    """Drawn by `make pictures`: 60 edges, the strongest head of the caption among them."""
    picture = (DOCS / "img" / "circuit-smollm2-ioi.svg").read_text(encoding="utf-8")
    edges = re.findall(r'id="([\w.]+-&gt;[^"]+)"', picture)
    assert len(set(edges)) == 60
    assert "a23.h3-&gt;logits" in edges
