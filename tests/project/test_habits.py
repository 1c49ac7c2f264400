"""What surrounds the code fits it: workflows, hooks, templates and pages name targets, extras and files that exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PAGES = ["README.md", "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md"]


def read(path: Path) -> dict[Any, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict), path
    return content


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_complete(path: Path) -> None:
    workflow = read(path)
    assert workflow["name"] == path.stem
    assert workflow[True]  # `on`, which YAML 1.1 reads as a truth value
    assert workflow["permissions"] == {"contents": "read"}, "what needs more says so in its job"
    for name, job in workflow["jobs"].items():
        if "uses" in job:
            assert (ROOT / job["uses"]).exists(), name
        else:
            assert job["timeout-minutes"] <= 60, name
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step), step
        assert re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", step.get("uses", "a/b@v1")), step


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_that_exist(path: Path) -> None:
    calls = [name for step in steps(read(path)) for name in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))]
    assert calls
    assert set(calls) <= TARGETS


def test_tests_run_on_every_python_that_is_claimed() -> None:
    tested = read(ROOT / ".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    claimed = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if name.startswith(prefix)]
    assert tested == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"


def test_templates_and_hooks_can_be_read() -> None:
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = read(path)
        if path.stem != "config":
            identifiers = [field["id"] for field in form["body"] if field["type"] != "markdown"]
            assert len(set(identifiers)) == len(identifiers) > 0
    assert read(ROOT / ".github/dependabot.yml")["version"] == 2
    for repository in read(ROOT / ".pre-commit-config.yaml")["repos"]:
        for hook in repository["hooks"]:
            assert hook["entry"].startswith(".venv/bin/"), "the same tools as `make lint`"


def test_targets_install_extras_that_exist() -> None:
    installed = set(re.findall(r"\.installed-([a-z]+)", MAKEFILE))
    assert installed <= EXTRAS.keys()
    for requirements in EXTRAS.values():
        for named in re.findall(r"gatewise\[([a-z,]+)\]", " ".join(requirements)):
            assert set(named.split(",")) <= EXTRAS.keys()


def test_everything_that_is_installed_has_its_exact_version() -> None:
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    exact = {name.lower().replace("_", "-") for name in pinned}
    for requirement in [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]:
        name = re.match(r"[\w-]+", requirement)
        assert name is not None
        assert name[0].lower().replace("_", "-") in exact | {"gatewise"}, requirement


def test_one_version_everywhere() -> None:
    assert read(ROOT / "CITATION.cff")["version"] == PROJECT["version"]
    assert f"\n## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_pages_link_to_files_and_name_targets_that_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / link).exists(), link
    if page != "CHANGELOG.md":  # which also tells of what is gone
        assert set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, flags=re.MULTILINE)) <= TARGETS
