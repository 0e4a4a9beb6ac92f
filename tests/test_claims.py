"""The ledger holds every claim, and each leads to a cell that ran or to a source."""

import json
import re
from pathlib import Path

import pytest

BOOK = Path(__file__).parent.parent / "book"
WANTED = {*(f"F{i}" for i in range(1, 27)), "F11b", *(f"G{i}" for i in range(1, 18))}
ENTRY = re.compile(
    r"^\*\*(?P<id>\w+)\.\*\* \*(?P<claim>.+?)\* \*\*(?P<verdict>\w+)\.\*\* (?P<says>.+) "
    r"(?:Measured: \{ref\}`[^`]*<(?P<label>claim-\w+)>`|Source: \{cite\}`(?P<keys>[^`]+)`)\.$",
    re.M,
)
ENTRIES = [m.groupdict() for m in ENTRY.finditer((BOOK / "claims.md").read_text(encoding="utf-8"))]


def cells():
    """(label, the code cell that follows it) for every label of a claim in the chapters."""
    found = {}
    for path in sorted(BOOK.glob("[0-9]*.ipynb")):
        waiting = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                waiting += re.findall(r"^\((claim-\w+)\)=", source, re.M)
            elif cell["outputs"]:
                found |= dict.fromkeys(waiting, cell)
                waiting = []
    return found


CELLS = cells()
KEYS = set(re.findall(r"^@\w+\{([^,]+)", (BOOK / "references.bib").read_text("utf-8"), re.M))


def test_every_claim_is_in_the_ledger_once():
    assert sorted(e["id"] for e in ENTRIES) == sorted(WANTED)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e["id"])
def test_a_claim_has_a_verdict_and_evidence(entry):
    assert entry["verdict"] in ("True", "Imprecise", "Wrong")
    if entry["label"]:
        assert entry["label"] in CELLS, "no cell with output follows this label"
    else:
        assert set(entry["keys"].split(",")) <= KEYS
