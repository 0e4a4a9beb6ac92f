"""Answers in other people's hands: every right one passes, no wrong one does.

The declared solutions and faults of an exercise are written by whoever wrote the exercise. These
here were not: they keep the grader from knowing only its own handwriting.
"""

from __future__ import annotations

import importlib.util

import pytest
from right_answers_of_others import RIGHT
from wrong_answers_of_others import WRONG

from sdpa_course.exercises import find
from sdpa_course.grading.answers import check_answer
from sdpa_course.grading.habits import random_probes

if importlib.util.find_spec("torch"):
    from torch_answers_of_others import RIGHT as RIGHT_IN_TORCH
else:
    RIGHT_IN_TORCH = []


def label(pair):
    exercise, answer = pair[:2]
    return f"{exercise}-{getattr(answer, '__name__', 'partial').strip('<>')}"


@pytest.mark.parametrize("pair", RIGHT, ids=label)
def test_a_right_answer_passes_however_it_is_written(pair):
    exercise, answer = pair
    report = check_answer(find(exercise), answer, source="")
    assert report.status == "passed", f"{report}"


@pytest.mark.skipif(not RIGHT_IN_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("pair", RIGHT_IN_TORCH, ids=label)
def test_a_right_answer_in_torch_passes_however_it_is_written(pair):
    exercise, answer = pair
    report = check_answer(find(exercise), answer, source="")
    assert (report.status, report.backend) == ("passed", "torch"), f"{report}"


@pytest.mark.parametrize("answer", WRONG, ids=label)
def test_a_wrong_answer_fails_and_its_mistakes_are_named(answer):
    exercise, function, mistakes = answer
    report = check_answer(find(exercise), function, source="")
    assert report.status in ("failed", "error"), f"{report}"
    assert sorted(report.faults) == sorted(mistakes), f"{report}"


def test_an_answer_that_is_wrong_for_some_inputs_only_fails_whatever_the_seed():
    exercise, clipped = next(a[:2] for a in WRONG if a[1].__name__ == "entropy_clipped")
    for seed in range(20):
        assert check_answer(find(exercise), clipped, source="", seed=seed).status == "failed"


def test_random_inputs_keep_what_the_statement_promises():
    """The queries of `causal_mask` are the last L of S positions, whatever sizes are drawn."""
    for seed in range(20):
        for probe in random_probes(find("causal_mask"), seed):
            assert probe.inputs == probe.dims
            assert probe.dims["L"] <= probe.dims["S"]


def test_there_are_many_of_each():
    assert len(RIGHT) >= 60
    assert len(WRONG) >= 40
