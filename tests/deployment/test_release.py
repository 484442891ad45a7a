"""A release: its notes, what it refuses, and the workflows that make it."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

NOTES = Path("host/tools/afterbay/dist/release-notes")
CHANGELOG = "# Changelog\n\n## Unreleased\n\n- Later.\n\n## 1.2.3 - 2026-11-28\n\nThe first:\n\n- **One.**\n\n## 1.2.2\n\n- Earlier.\n"


@pytest.fixture
def tree(tmp_path):
    """A repository at version 1.2.3, tagged so."""
    (tmp_path / NOTES).parent.mkdir(parents=True)
    shutil.copy(ROOT / NOTES, tmp_path / NOTES)
    (tmp_path / "Cargo.toml").write_text('[workspace]\nmembers = []\n\n[workspace.package]\nversion = "1.2.3"\n\n[x]\nversion = "9"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    git(tmp_path, "tag", "v1.2.3")
    return tmp_path


def git(tree, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], cwd=tree, check=True)


def commit(tree):
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "Change")


def notes(tree):
    return subprocess.run([tree / NOTES], capture_output=True, text=True)


def refusal(tree):
    done = notes(tree)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_the_notes_are_the_section_of_the_tags_version(tree):
    done = notes(tree)
    assert (done.returncode, done.stdout) == (0, "The first:\n\n- **One.**\n"), done.stderr


def test_a_tree_with_changes_is_not_released(tree):
    (tree / "new").write_text("")
    assert "the tree has changes" in refusal(tree)


def test_a_tag_that_is_not_the_version_is_not_released(tree):
    cargo = tree / "Cargo.toml"
    cargo.write_text(cargo.read_text().replace("1.2.3", "1.3.0"))
    commit(tree)
    assert "HEAD has no tag v1.3.0" in refusal(tree)
    git(tree, "tag", "v1.2.4")
    assert "HEAD has no tag v1.3.0" in refusal(tree)


def test_a_version_without_a_section_is_not_released(tree):
    (tree / "CHANGELOG.md").write_text(CHANGELOG.replace("## 1.2.3", "## 1.2.30"))
    commit(tree)
    git(tree, "tag", "--force", "v1.2.3")
    assert 'no section "## 1.2.3"' in refusal(tree)


def test_the_changelog_is_short_and_its_newest_section_is_of_this_version():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    newest = next(line.split()[1] for line in lines if line.startswith("## "))
    assert newest in ("Unreleased", version)
    starts = [at for at, line in enumerate(lines) if line.startswith("## ")] + [len(lines)]
    assert max(end - start for start, end in zip(starts, starts[1:])) <= 40


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github/workflows").iterdir()), ids=lambda path: path.name)
def test_a_workflow_runs_only_commands_of_a_developer(workflow):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = {".ci/run"} | {f"make {target}" for target in targets}
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    steps = [step for job in jobs for step in job["steps"]]
    run = [step["run"] for step in steps if "run" in step]
    assert run and set(run) <= commands
    # A tag of an action can move, its commit cannot.
    actions = [step["uses"] for step in steps if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action in actions), actions
