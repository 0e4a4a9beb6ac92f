"""The smallest example that a report shows, and the sentences said where no mistake fits."""

import numpy as np

from sdpa_course.exercises import find
from sdpa_course.grading.call import LocalRunner
from sdpa_course.grading.properties import rows_sum_to_zero
from sdpa_course.grading.shrink import smallest_failure


def zeros(**inputs):
    return np.zeros_like(inputs["weights"])


def test_inputs_that_belong_together_are_shown_as_they_were_made():
    exercise = find("backward.scores_gradient")
    example = smallest_failure(exercise, LocalRunner(zeros))
    assert example is not None
    np.testing.assert_allclose(example.inputs["weights"].sum(axis=-1), 1)


def test_other_inputs_become_whole_numbers():
    exercise = find("backward.query_and_key_gradients")
    example = smallest_failure(exercise, LocalRunner(lambda d_scores, q, k: (0 * q, 0 * k)))
    assert example is not None
    assert all((x == np.round(x)).all() for x in example.inputs.values())


def test_a_gradient_whose_rows_do_not_sum_to_zero_is_told_so():
    exercise = find("backward.scores_gradient")
    holds, probe = rows_sum_to_zero("dS"), exercise.probes[0]
    assert holds(LocalRunner(exercise.run), probe) is None
    wrong = exercise.variant(exercise.fault_named("softmax.jacobian_row_term_missing"))
    told = holds(LocalRunner(wrong), probe)
    assert told is not None
    assert "sum to 0" in told
