"""The project around the code: metadata, workflows and templates name things that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import tosaic

ROOT = Path(__file__).parents[1]
HOME = "https://github.com/tosaic/tosaic"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read_project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_has_one_source() -> None:
    project = read_project()
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    source = (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text()
    assert re.findall(r'^__version__ = "(.*)"$', source, re.MULTILINE) == [tosaic.__version__]


def test_urls_of_the_project() -> None:
    project = read_project()["project"]
    assert project["authors"] == [{"name": "The Tosaic developers"}]
    for url in project["urls"].values():
        assert url.startswith(HOME)
        path = url.removeprefix(f"{HOME}/blob/main/")
        assert path == url or (ROOT / path).exists(), url
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["repository-code"], citation["license"]) == (HOME, project["license"])


def test_every_extra_is_pinned() -> None:
    """What `make setup` and the tests install is in constraints.txt."""
    pinned = {re.split(r"[=;]", line)[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    extras = read_project()["project"]["optional-dependencies"]
    for extra in ("vision", "vgf", "board", "docs", "dev"):
        names = [re.split(r"[\[<>=,]", one)[0].lower() for one in extras[extra]]
        assert [name for name in names if name not in {*pinned, "tosaic"}] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_exists(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [line for job in jobs.values() for step in job["steps"] for line in step.get("run", "").splitlines()]
    assert commands
    for command in commands:
        words = command.split()
        if words[0] == "make":
            assert set(words[1:]) <= targets, command
        elif words[0].startswith("."):
            assert (ROOT / words[0]).exists(), command
        assert "github.event" not in command and "inputs." not in command


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_is_complete(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        for link in form["contact_links"]:
            assert (ROOT / link["url"].removeprefix(f"{HOME}/blob/main/")).exists()
        return
    assert form["name"] and form["description"]
    for field in form["body"]:
        assert field["type"] in ("textarea", "input") and field["id"] and field["attributes"]["label"]
