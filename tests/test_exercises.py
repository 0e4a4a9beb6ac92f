"""The grader is graded: every exercise of the course, with every answer of known worth."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from sdpa_course.exercises import all_exercises, chapters, exercises_of, find
from sdpa_course.grading.audit import FUNCTIONS, audit, right_answers
from sdpa_course.grading.mutate import try_mutants

if importlib.util.find_spec("torch"):
    import torch  # noqa: F401  so that the torch solutions are graded as well

BOOK = Path(__file__).parent.parent / "book"
EXERCISES = all_exercises()
PAIRS, TRIPLES = 150, 60  # at most so many are tried of each exercise
KINDS_PER_CHAPTER = 4
AUDITS = {}


def audited(exercise):
    if exercise.id not in AUDITS:
        AUDITS[exercise.id] = audit(exercise, most_pairs=PAIRS, most_triples=TRIPLES)
    return AUDITS[exercise.id]


def trials(exercise, *kinds):
    return [t for t in audited(exercise)[0] if t.kind in kinds]


@pytest.fixture(params=EXERCISES, ids=lambda e: e.id)
def exercise(request):
    return request.param


def test_the_stub_is_not_attempted_and_every_right_solution_passes(exercise):
    found = trials(exercise, "stub", "solution")
    assert len(found) >= 2
    assert [t for t in found if not t.holds] == []


def test_every_fault_gets_its_own_name_and_no_other(exercise):
    found = trials(exercise, "fault", "fitted")
    assert len(found) == len(exercise.faults) + len(exercise.fits) > 0
    assert [t for t in found if not t.holds] == []


def test_no_wrong_answer_passes(exercise):
    assert [t for t in trials(exercise, "fault", "pair", "triple") if t.got == "passed"] == []


def test_faults_lie_far_from_the_right_answer_and_from_each_other(exercise):
    assert audited(exercise)[1] == []


def test_nearly_all_pairs_and_triples_are_named_exactly():
    found = {kind: [t for e in EXERCISES for t in trials(e, kind)] for kind in ("pair", "triple")}
    for kind, share in (("pair", 0.98), ("triple", 0.90)):
        assert len(found[kind]) > 50
        named = sum(t.holds for t in found[kind]) / len(found[kind])
        assert named >= share, (
            f"{named:.1%} of {kind}s: {[t for t in found[kind] if not t.holds][:9]}"
        )


def test_the_rest_of_the_pairs_and_triples_name_at_least_one_of_the_mistakes():
    for exercise in EXERCISES:
        for trial in trials(exercise, "pair", "triple"):
            if not trial.holds:
                assert set(trial.got.split()) & set(trial.wanted.split()), trial


def test_a_chapter_has_at_least_five_exercises_of_four_kinds():
    for concept in chapters().values():
        declared = exercises_of(concept)
        assert len(declared) >= 5, concept
        assert len({e.kind for e in declared}) >= KINDS_PER_CHAPTER, concept


def test_names_are_unique_so_that_a_function_finds_its_exercise():
    assert len({e.name for e in EXERCISES}) == len(EXERCISES)
    for exercise in EXERCISES:
        assert find(exercise.name) is find(exercise.id) is exercise


def test_an_exercise_says_what_a_learner_needs(exercise):
    assert exercise.title
    assert len(exercise.statement) > 40
    assert exercise.link
    if exercise.kind in FUNCTIONS:
        assert exercise.reason, "the solution is shown with the reason why it is right"
    for fault in exercise.faults:
        assert fault.says.rstrip().endswith((".", "?", "!", "`", ")")), fault.id
        assert exercise.kind == "quiz" or fault.why or fault.hint, f"{fault.id} gives no reason"


def test_links_lead_to_a_heading_of_the_book(exercise):
    for link in {
        exercise.link,
        *(f.link for f in exercise.faults),
        *(f.link for f in exercise.fits),
    }:
        if link:
            page, _, slug = link.partition("#")
            assert slug in {"", *headings(page)}, f"{link}: {sorted(headings(page))}"


def headings(page):
    """The slugs of the headings of a page."""
    notebook, text = BOOK / f"{page}.ipynb", BOOK / f"{page}.md"
    if notebook.exists():
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        source = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    else:
        source = text.read_text(encoding="utf-8")
    return {slug(title) for title in re.findall(r"^#+ +(.+?) *$", source, re.M)} | set(
        re.findall(r"^\(([\w-]+)\)=", source, re.M)
    )


def slug(title):
    """As docutils makes an id of a heading."""
    from docutils.nodes import make_id

    return make_id(re.sub(r"\{[^}]*\}|[`*]", "", title).replace("$", ""))


def test_many_differently_written_right_solutions_are_accepted():
    count = sum(len(list(right_answers(e))) for e in EXERCISES if e.kind in FUNCTIONS)
    assert count >= 60


@pytest.mark.parametrize(
    "exercise", [e for e in EXERCISES if e.kind in ("implement", "fix")], ids=lambda e: e.id
)
def test_no_mutant_of_a_right_solution_passes_unless_it_is_equivalent(exercise):
    found = [
        mutant
        for solution in exercise.solutions
        if solution.backend == "numpy"
        for mutant in try_mutants(exercise, solution)
    ]
    assert found
    assert [m for m in found if m.outcome == "passed"] == []
