"""Notebooks in one canonical form, so that a diff shows what an author changed and nothing else.

    python tools/nb.py run PATH...          execute in place, then strip and check
    python tools/nb.py strip PATH...        canonical form: stable cell ids, text outputs,
                                            no figure payloads, no traces of the run
    python tools/nb.py check PATH...        say what is not canonical or may come out differently
    python tools/nb.py from-text SRC DEST   text to notebook; `run` it next
    python tools/nb.py to-text SRC DEST     notebook to text, to edit and convert back

Text is MyST Markdown (.md) or Python with percent cells (.py).

PATH is a notebook or a folder. The .ipynb is the only source kept in the repository.
"""

import argparse
import importlib.util
import os
import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT = 600  # seconds
NEEDS_TORCH = "needs-torch"
COUNT = 1
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
CELL_METADATA = (
    "tags",
    "mystnb",
    "sdpa",
)  # the rest (scroll positions, timings) is an editor's own
FIGURES = re.compile(r"image/(png|jpeg)|application/pdf")
RANDOM_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f-]+)?")  # as Jupyter makes them
NOT_REPEATABLE = {
    r"\b0x[0-9a-f]{6,}\b": "a memory address",
    r"(?<![\w.])/(home|root|tmp|Users)/\w": "a path of one machine",
    r"\d\.\d{7,}": "seven or more decimals; the last digits may differ elsewhere, so round",
}


def main() -> None:
    os.environ["SDPA_PROGRESS"] = "off"  # running a chapter is no attempt of the learner
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "strip", "check"):
        commands.add_parser(name).add_argument("paths", nargs="+", type=Path)
    for name in ("from-text", "to-text"):
        convert = commands.add_parser(name)
        convert.add_argument("source", type=Path)
        convert.add_argument("destination", type=Path)
    arguments = parser.parse_args()

    if arguments.command == "from-text":
        from_text(arguments.source, arguments.destination)
    elif arguments.command == "to-text":
        to_text(arguments.source, arguments.destination)
    else:
        notebooks = [notebook for path in arguments.paths for notebook in notebooks_in(path)]
        results = [
            {"run": run, "strip": strip, "check": report}[arguments.command](path)
            for path in notebooks
        ]
        sys.exit(0 if all(results) else 1)


def notebooks_in(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(
        found for found in path.rglob("*.ipynb") if ".ipynb_checkpoints" not in found.parts
    )


def run(path: Path) -> bool:
    """Execute in place, each notebook in its own folder with a fresh kernel of this Python."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, as_version=4)
    if any(tagged(cell, NEEDS_TORCH) for cell in notebook.cells) and not importlib.util.find_spec(
        "torch"
    ):
        print(f"{path}: not run, since it has cells that need torch and torch is not installed")
        return False
    notebook.metadata.setdefault("kernelspec", METADATA["kernelspec"])
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT, resources={"metadata": {"path": str(path.parent)}}
    )
    try:
        client.execute()
    except CellExecutionError as failure:
        print(f"{path}: not written, since a cell failed\n{failure}")
        return False
    write(canonical(notebook), path)
    return report(path)


def strip(path: Path) -> bool:
    write(canonical(nbformat.read(path, as_version=4)), path)
    return True


def report(path: Path) -> bool:
    found = problems(path)
    for problem in found:
        print(f"{path}: {problem}")
    return not found


def problems(path: Path) -> list[str]:
    """What keeps a notebook from being committed; empty for a good one."""
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    found = []
    if text != as_text(canonical(notebook)):
        found.append(f"not in canonical form: python tools/nb.py strip {path}")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            found += [f"cell {cell.id}: {problem}" for problem in problems_of_cell(cell)]
    return found


def problems_of_cell(cell) -> list[str]:
    found = []
    if re.search(r"(?<![a-z])torch\b", code_of(cell)) and not tagged(cell, NEEDS_TORCH):
        found.append(f'uses torch without the tag "{NEEDS_TORCH}"')
    if cell.source.rstrip().endswith(";"):
        found.append("ends in a semicolon, which nbval does not heed: end a figure with plt.show()")
    for output in cell.outputs:
        if output.output_type == "error" and not tagged(cell, "raises-exception"):
            found.append(f"raises {output.ename}")
        if output.get("name") == "stderr":
            found.append("writes to stderr")
        if "<Figure size" in output.get("data", {}).get("text/plain", ""):
            found += problems_of_figure(cell)
        if not tagged(cell, "nbval-ignore-output"):
            found += [
                f"prints {what}"
                for pattern, what in NOT_REPEATABLE.items()
                if re.search(pattern, shown(output))
            ]
    return found


def problems_of_figure(cell) -> list[str]:
    wanted = {"image": "alt", "figure": "caption"}
    settings = cell.metadata.get("mystnb", {})
    return [
        f"a figure without mystnb.{at}.{key}"
        for at, key in wanted.items()
        if not settings.get(at, {}).get(key)
    ]


def code_of(cell) -> str:
    """The code without its comments and the text in quotes on one line."""
    return re.sub(r"""#.*|"[^"\n]*"|'[^'\n]*'""", "", cell.source)


def shown(output) -> str:
    if output.output_type == "stream":
        return output.text
    return "\n".join(
        str(text) for kind, text in output.get("data", {}).items() if kind.startswith("text/")
    )


def tagged(cell, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def canonical(notebook):
    """The same notebook, less what changes from run to run or from machine to machine."""
    cells, taken = [], set()
    for cell in notebook.cells:
        metadata = {key: cell.metadata[key] for key in CELL_METADATA if cell.metadata.get(key)}
        source = cell.source.rstrip()
        cell_id = stable_id(cell.get("id", ""), source, taken)
        taken.add(cell_id)
        fields = {"id": cell_id, "metadata": metadata, "source": source}
        if cell.cell_type == "code":
            # nbval compares only the cells that carry a count. The same one in all of them, so that
            # a cell put in between leaves the others' lines alone.
            fields |= {"outputs": canonical_outputs(cell.outputs), "execution_count": COUNT}
            if tagged(cell, "nbval-ignore-output"):
                drop_html(fields["outputs"])
        make = getattr(nbformat.v4, f"new_{cell.cell_type}_cell")
        cells.append(make(**fields))
    return nbformat.v4.new_notebook(cells=cells, metadata=METADATA, nbformat_minor=5)


def stable_id(current: str, source: str, taken: set[str]) -> str:
    """An author's id, or else the cell's first words: adding a cell leaves the others' alone."""
    if current and current not in taken and not RANDOM_ID.fullmatch(current):
        return current
    words = re.findall(r"[a-z0-9]+", source.lower())
    stem = "-".join(words[:5])[:40].strip("-") or "cell"
    stem = f"cell-{stem}" if RANDOM_ID.fullmatch(stem) else stem
    number, candidate = 1, stem
    while candidate in taken:
        number += 1
        candidate = f"{stem}-{number}"
    return candidate


def drop_html(outputs) -> None:
    """Markup that nothing compares is made again by every build: a diff need not show it."""
    for output in outputs:
        if "text/plain" in output.get("data", {}):
            output.data.pop("text/html", None)


def canonical_outputs(outputs) -> list:
    kept = []
    for output in outputs:
        if output.output_type == "stream":
            if kept and kept[-1].output_type == "stream" and kept[-1].name == output.name:
                kept[-1].text += output.text  # how a stream is cut into pieces is chance
            else:
                kept.append(nbformat.v4.new_output("stream", name=output.name, text=output.text))
        elif output.output_type == "error":
            # The traceback holds paths and colours; what it says is in the other two.
            kept.append(
                nbformat.v4.new_output(
                    "error", ename=output.ename, evalue=output.evalue, traceback=[]
                )
            )
        else:
            data = {kind: text for kind, text in output.data.items() if not FIGURES.search(kind)}
            glued = {key: output.metadata[key] for key in ("scrapbook",) if key in output.metadata}
            new = nbformat.v4.new_output(output.output_type, data=data, metadata=glued)
            if output.output_type == "execute_result":
                new.execution_count = COUNT
            kept.append(new)
    return kept


def from_text(source: Path, destination: Path) -> None:
    import jupytext

    form = "md:myst" if source.suffix == ".md" else "py:percent"
    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt=form)
    for cell in notebook.cells:
        cell.pop("id", None)
    write(canonical(notebook), destination)


def to_text(source: Path, destination: Path) -> None:
    import jupytext

    notebook = canonical(nbformat.read(source, as_version=4))
    form = "md:myst" if destination.suffix == ".md" else "py:percent"
    destination.write_text(jupytext.writes(notebook, fmt=form), encoding="utf-8")


def as_text(notebook) -> str:
    return nbformat.writes(notebook) + "\n"


def write(notebook, path: Path) -> None:
    path.write_text(as_text(notebook), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
