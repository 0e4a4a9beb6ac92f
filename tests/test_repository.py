"""The repository itself: what every file in it must keep to."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import nb  # from tools/
import pytest

ROOT = Path(__file__).resolve().parent.parent


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]


def tracked_text() -> list[tuple[str, str]]:
    pairs = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" not in data:
            pairs.append((str(path.relative_to(ROOT)), data.decode("utf-8")))
    return pairs


def test_no_file_names_a_path_of_one_machine():
    home = re.compile(r"(?<![\w.$}/-])/(home|root|Users|mnt|work|opt/\w+)/[\w.]")
    found = [f"{name}: {line}" for name, text in tracked_text() for line in matches(home, text)]
    assert found == []


def test_no_lock_file_names_a_registry():
    for name, text in tracked_text():
        if name.endswith("package-lock.json"):
            assert '"resolved"' not in text, name


def test_text_files_end_in_one_newline_and_have_no_trailing_blanks():
    bad = []
    for name, text in tracked_text():
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            bad.append(f"{name}: end of file")
        if name.endswith((".py", ".toml", ".yml", ".mjs", ".css")) and re.search(r"[ \t]\n", text):
            bad.append(f"{name}: blanks at the end of a line")
    assert bad == []


def test_requirements_are_exact():
    for name in ("requirements.txt", "requirements-torch.txt"):
        for line in (ROOT / name).read_text().splitlines():
            requirement = line.partition("#")[0].strip()
            assert not requirement or re.match(r"[\w.-]+==[\w.]+( ;|$)", requirement), line


def test_pyproject_asks_for_versions_that_the_requirements_have():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = (ROOT / "requirements.txt").read_text() + (ROOT / "requirements-torch.txt").read_text()
    exact = [r for extra in project["optional-dependencies"].values() for r in extra if "==" in r]
    assert [r for r in exact if r not in pinned] == []


def test_installing_the_package_brings_numpy_only():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [re.split(r"[^\w-]", name)[0] for name in project["dependencies"]] == ["numpy"]


def all_notebooks() -> list[Path]:
    folders = [ROOT / "book", ROOT / "exercises"]
    return [path for folder in folders if folder.is_dir() for path in nb.notebooks_in(folder)]


@pytest.mark.parametrize("path", all_notebooks(), ids=lambda path: str(path.relative_to(ROOT)))
def test_notebooks_are_in_canonical_form(path):
    assert nb.problems(path) == []


def test_every_page_is_in_the_table_of_contents():
    contents = re.findall(r"^\s*(?:- file|root): (\S+)", (ROOT / "book/_toc.yml").read_text(), re.M)
    pages = [
        p for p in tracked_files() if p.parent == ROOT / "book" and p.suffix in (".md", ".ipynb")
    ]
    assert sorted(contents) == sorted(page.stem for page in pages)


def test_stripping_is_idempotent_and_keeps_what_a_reader_sees(tmp_path):
    path = tmp_path / "trial.ipynb"
    path.write_text(json.dumps(RAW_NOTEBOOK))
    nb.strip(path)
    once = path.read_text()
    nb.strip(path)
    assert path.read_text() == once

    text, code = json.loads(once)["cells"]
    assert text["id"] == "kept-by-its-author"
    assert code["id"] == "plt-plot-1-2-plt"
    assert code["metadata"] == {"tags": ["hide-input"]}
    assert code["outputs"][0]["text"] == ["ab\n"]
    assert code["outputs"][1]["data"] == {"text/plain": ["<Figure size 640x480 with 1 Axes>"]}


def test_the_check_names_what_would_not_come_out_the_same(tmp_path):
    path = tmp_path / "trial.ipynb"
    path.write_text(json.dumps(RAW_NOTEBOOK))
    nb.strip(path)
    assert nb.problems(path) == [
        "cell plt-plot-1-2-plt: a figure without mystnb.image.alt",
        "cell plt-plot-1-2-plt: a figure without mystnb.figure.caption",
    ]


def matches(pattern: re.Pattern, text: str) -> list[str]:
    return [line.strip()[:120] for line in text.splitlines() if pattern.search(line)]


RAW_NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "another", "display_name": "Another"}},
    "cells": [
        {
            "cell_type": "markdown",
            "id": "kept-by-its-author",
            "metadata": {},
            "source": "Text",
        },
        {
            "cell_type": "code",
            "id": "0a1b2c3d",
            "metadata": {"tags": ["hide-input"], "execution": {"iopub.execute_input": "now"}},
            "execution_count": 17,
            "source": "plt.plot([1, 2])\nplt.show()",
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": "a"},
                {"output_type": "stream", "name": "stdout", "text": "b\n"},
                {
                    "output_type": "display_data",
                    "metadata": {},
                    "data": {
                        "image/png": "iVBORw0KGgo=",
                        "text/plain": "<Figure size 640x480 with 1 Axes>",
                    },
                },
            ],
        },
    ],
}
