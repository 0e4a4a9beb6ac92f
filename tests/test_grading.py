"""The engine, on a small exercise of its own."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from sdpa_course.grading.answers import check_answer
from sdpa_course.grading.audit import audit
from sdpa_course.grading.compare import FAR, distance
from sdpa_course.grading.exercise import Exercise, Fit, Solution
from sdpa_course.grading.fit import name_value
from sdpa_course.grading.habits import HABITS
from sdpa_course.grading.properties import rows_sum_to_one


def normalised(scores, axis=-1):
    e = np.exp(scores - scores.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def make_exercise(kind="implement", **words):
    """Attention in four stages: transpose, factor, axis, mix."""
    exercise = Exercise(
        "demo.attend",
        kind=kind,
        title="Attend",
        statement="",
        link="02-scaling",
        goals={"factor": "scale", "axis": "softmax over the keys"},
        backends=("numpy", "torch"),
        built_from=("sdpa_course.with_numpy.attention.scaled_dot_product_attention",),
        properties=(rows_sum_to_one(1),),
        outputs=("output", "weights"),
        **words,
    )

    @exercise.inputs
    def _(rng, B=2, H=3, L=5, S=6, d_k=7, d_v=8):
        return {
            "q": rng.normal(size=(B, H, L, d_k)),
            "k": rng.normal(size=(B, H, S, d_k)),
            "v": rng.normal(size=(B, H, S, d_v)),
        }

    @exercise.model
    def _(
        q,
        k,
        v,
        *,
        turned=lambda k: k.swapaxes(-1, -2),
        factor=lambda q, k, v: q.shape[-1] ** -0.5,
        axis=-1,
        mix=lambda w, v: w @ v,
    ):
        weights = normalised(q @ turned(k) * factor(q, k, v), axis)
        return mix(weights, v), weights

    exercise.probe("works on a batch of heads")
    exercise.probe("works when L > S", B=3, H=2, L=9, S=3, d_k=5, d_v=2)
    exercise.probe("works on one head", B=1, H=1, L=2, S=3, d_k=2, d_v=3)

    exercise.fault(
        "scores.reshaped",
        "k is reshaped.",
        turned=lambda k: k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]),
    )
    exercise.fault(
        "scale.sqrt_d_v", "You divide by √d_v.", factor=lambda q, k, v: v.shape[-1] ** -0.5
    )
    exercise.fault("scale.forgotten", "No scale.", factor=lambda q, k, v: 1.0)
    exercise.fault("softmax.over_queries", "Wrong axis.", axis=-2)
    exercise.fault("softmax.over_heads", "Heads.", axis=1)
    exercise.fault(
        "mix.forgotten_keys",
        "The mean of v.",
        mix=lambda w, v: w @ v * 0 + v.mean(-2)[..., None, :],
    )
    exercise.add(
        Fit(
            "scale.fitted",
            "factor",
            "Multiplied by {found} = {value}, right is {right}.",
            right=lambda dims: dims["d_k"] ** -0.5,
            setting=lambda c: lambda q, k, v: c,
        )
    )

    @exercise.stub
    def attend(q, k, v):
        raise NotImplementedError

    @exercise.solution
    def attend(q, k, v):
        weights = normalised(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        return weights @ v, weights

    @exercise.solution("one einsum for each product")
    def attend(q, k, v):
        scores = np.einsum("bhld,bhsd->bhls", q, k) * q.shape[-1] ** -0.5
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        return np.einsum("bhls,bhsd->bhld", weights, v), weights

    return exercise


@pytest.fixture(scope="module")
def attend():
    return make_exercise()


def attention_with(factor=lambda q, k, v: q.shape[-1] ** -0.5, axis=-1, power=1.0):
    """A learner's function, written otherwise than the model."""

    def attend(q, k, v):
        scores = np.einsum("bhld,bhsd->bhls", q, k) * factor(q, k, v)
        weights = normalised(scores, axis)
        return np.einsum("bhls,bhsd->bhld", weights, v) * power, weights

    return attend


# -- naming the mistake ------------------------------------------------------------------------


def test_a_right_answer_passes_and_names_the_sub_goals(attend):
    report = check_answer(attend, attention_with())
    assert report.status == "passed"
    assert report.faults == []
    assert report.done == tuple(probe.goal for probe in attend.probes)


def test_one_mistake_is_named(attend):
    report = check_answer(attend, attention_with(lambda q, k, v: 1 / math.sqrt(v.shape[-1])))
    assert report.faults == ["scale.sqrt_d_v"]


def test_two_mistakes_at_once_are_both_named(attend):
    report = check_answer(attend, attention_with(lambda q, k, v: v.shape[-1] ** -0.5, axis=-2))
    assert report.faults == ["scale.sqrt_d_v", "softmax.over_queries"]
    assert report.missed == ("scale", "softmax over the keys")


def test_three_mistakes_at_once_are_all_named(attend):
    def bad(q, k, v):
        scores = q @ k.reshape(*k.shape[:2], k.shape[3], k.shape[2])
        weights = normalised(scores, -2)
        return weights @ v, weights

    report = check_answer(attend, bad)
    assert report.faults == ["scores.reshaped", "scale.forgotten", "softmax.over_queries"]


@pytest.mark.parametrize(
    ("factor", "name"),
    [
        (lambda q, k, v: q.shape[-1] / 2, "d_k/2"),
        (lambda q, k, v: q.shape[-1] ** 1 / 2, "d_k/2"),
        (lambda q, k, v: 1 / q.shape[-1], "1/d_k"),
        (lambda q, k, v: (q.shape[-1] * k.shape[-2]) ** -0.5, "1/(√S·√d_k)"),
        (lambda q, k, v: q.shape[-1] ** -0.25, "1/d_k^¼"),
        (lambda q, k, v: 0.37, "0.37"),
        (lambda q, k, v: 0.3 * q.shape[-1] ** -0.5, "0.3/√d_k"),
        (lambda q, k, v: -(q.shape[-1] ** -0.5), "-1/√d_k"),
    ],
)
def test_a_scale_that_no_list_holds_is_fitted_and_named(attend, factor, name):
    report = check_answer(attend, attention_with(factor))
    assert report.faults == ["scale.fitted"]
    assert f"Multiplied by {name} =" in report.mistakes[0].says


def test_a_fitted_scale_composes_with_a_listed_mistake(attend):
    report = check_answer(attend, attention_with(lambda q, k, v: q.shape[-1] / 2, axis=-2))
    assert report.faults == ["scale.fitted", "softmax.over_queries"]


def test_a_value_that_differs_by_probe_and_has_no_name_is_not_named():
    assert name_value([0.37, 0.91], [{"d_k": 7}, {"d_k": 5}]) is None


def test_what_no_fault_explains_is_not_passed_and_shows_a_small_example(attend):
    report = check_answer(attend, attention_with(power=1.01))
    assert report.status == "failed"
    assert report.faults == []
    assert report.notes == ("Right so far: weights. Look at: output.",)
    assert report.example is not None
    assert max(x.size for x in report.example.inputs.values()) <= 4


def test_a_property_speaks_when_no_fault_fits(attend):
    def bad(q, k, v):
        weights = np.exp(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        return weights @ v, weights

    assert any("do not sum to 1" in note for note in check_answer(attend, bad).notes)


def test_exchanged_axes_are_pointed_out(attend):
    def bad(q, k, v):
        output, weights = attention_with()(q, k, v)
        return output.swapaxes(1, 2), weights

    note = check_answer(attend, bad).notes[0]
    assert "axes look exchanged" in note


def test_a_learner_may_rename_the_arguments(attend):
    def renamed(Q, K, V):
        return attention_with()(Q, K, V)

    def collected(*arrays):
        return attention_with()(*arrays)

    def named(**arrays):
        return attention_with()(**arrays)

    for answer in (renamed, collected, named):
        assert check_answer(attend, answer).status == "passed"


# -- what counts as no answer, and what as an error --------------------------------------------


def test_a_stub_is_not_attempted(attend):
    assert check_answer(attend, attend.stub_function).status == "not_attempted"
    assert check_answer(attend, lambda q, k, v: None).status == "not_attempted"
    assert check_answer(attend, lambda q, k, v: ...).status == "not_attempted"
    assert check_answer(attend, lambda q, k, v: q + ...).status == "not_attempted"


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_an_einsum_that_lacks_an_ellipsis_is_an_attempt(attend, backend):
    einsum = np.einsum if backend == "numpy" else pytest.importorskip("torch").einsum

    def answer(q, k, v):
        return einsum("ld,sd->ls", q, k)

    report = check_answer(attend, answer, backend=backend)
    assert report.status in ("failed", "error")
    assert report.raised is not None


def test_an_exception_shows_the_learners_line(attend):
    def bad(q, k, v):
        return q @ k.T

    report = check_answer(attend, bad)
    assert report.status == "error"
    assert "return q @ k.T" in report.raised.trace
    assert "grading" not in report.raised.trace


@pytest.mark.parametrize(
    "value",
    [{"a": 1}, object(), (x for x in [1]), np.array([object()], dtype=object), [[1], [1, 2]]],
)
def test_a_value_that_holds_no_numbers_is_an_error_that_says_so(attend, value):
    report = check_answer(attend, lambda q, k, v: value)
    assert report.status == "error"
    assert "expected" in report.raised.message


def test_an_answer_that_is_no_function_is_an_error(attend):
    assert check_answer(attend, 3.0).status == "error"


def test_an_endless_loop_is_stopped(attend, monkeypatch):
    monkeypatch.setattr("sdpa_course.grading.answers.SECONDS", 0.2)

    def forever(q, k, v):
        while True:
            pass

    report = check_answer(attend, forever)
    assert report.status == "error"
    assert "never ends" in report.notes[0]


def test_sys_exit_in_an_answer_is_an_error(attend):
    assert check_answer(attend, lambda q, k, v: exit(0)).status == "error"


def test_a_lying_array_is_seen_through(attend):
    class Liar(np.ndarray):
        def __eq__(self, other):
            return np.ones(self.shape, bool)

        def __array_function__(self, *_, **__):
            return True

    def bad(q, k, v):
        return np.zeros((*q.shape[:-1], v.shape[-1])).view(Liar), np.zeros(1).view(Liar)

    assert check_answer(attend, bad).status == "failed"


# -- habits --------------------------------------------------------------------------------------


def habit_cases():
    def in_place(q, k, v):
        q *= q.shape[-1] ** -0.5
        weights = normalised(q @ k.swapaxes(-1, -2))
        return weights @ v, weights

    def by_layout(q, k, v):
        return attention_with()(q.ravel(order="K").reshape(q.shape), k, v)

    calls = []

    def remembers(q, k, v):
        calls.append(1)
        output, weights = attention_with()(q, k, v)
        return output + (len(calls) > 4), weights

    def float32(q, k, v):
        return tuple(x.astype(np.float32) for x in attention_with()(q, k, v))

    def rounded(q, k, v):
        return tuple(x.astype(np.float32).astype(float) for x in attention_with()(q, k, v))

    def only_these_sizes(q, k, v):
        if q.shape[-1] not in (7, 5, 2):
            return attention_with(lambda q, k, v: 1.0)(q, k, v)
        return attention_with()(q, k, v)

    def borrowed(q, k, v):
        from sdpa_course.with_numpy import scaled_dot_product_attention as f

        return f(q, k, v, return_weights=True)

    return {
        "inputs.mutated": in_place,
        "inputs.layout": by_layout,
        "calls.differ": remembers,
        "dtype.rounded": rounded,
        "dtype.rounded ": float32,
        "probes.fixed_only": only_these_sizes,
        "uses.the_answer": borrowed,
    }


@pytest.mark.parametrize("name", habit_cases())
def test_a_bad_habit_is_named(attend, name):
    report = check_answer(attend, habit_cases()[name])
    assert report.status == "failed"
    assert name.strip() in report.faults


def test_a_small_constant_in_the_denominator_passes_with_a_remark(attend):
    def careful(q, k, v):
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        e = np.exp(scores - scores.max(-1, keepdims=True))
        weights = e / (e.sum(-1, keepdims=True) + 1e-8)
        return weights @ v, weights

    report = check_answer(attend, careful)
    assert report.status == "passed"
    assert "denominator" in report.notes[0]


def test_a_right_answer_that_loops_passes_with_a_remark(attend):
    def looping(q, k, v):
        weights = np.empty((*q.shape[:-1], k.shape[-2]))
        for i in range(q.shape[-2]):
            scores = (k @ q[..., i, :, None])[..., 0] / math.sqrt(q.shape[-1])
            weights[..., i, :] = normalised(scores)
        return weights @ v, weights

    report = check_answer(attend, looping)
    assert report.status == "passed"
    assert "loops in Python" in report.notes[0]


def test_a_python_int_has_the_dtype_of_an_array_of_ints():
    exercise = Exercise("demo.count", kind="implement", title="", statement="")
    exercise.inputs(lambda rng, n=3: {"n": n})
    exercise.model(lambda n: 2 * n)
    exercise.probe("counts")
    assert check_answer(exercise, lambda n: n + n).status == "passed"
    assert check_answer(exercise, lambda n: 2.0 * n).faults == ["dtype.changed"]


# -- torch -----------------------------------------------------------------------------------------


def torch_answer(change=lambda output: output, scale=lambda q: math.sqrt(q.shape[-1])):
    torch = pytest.importorskip("torch")

    def attend(q, k, v):
        weights = torch.softmax(q @ k.transpose(-1, -2) / scale(q), dim=-1)
        return change(weights @ v), weights

    return attend


def test_torch_is_recognised_from_what_the_function_does(attend):
    report = check_answer(attend, torch_answer())
    assert (report.status, report.backend) == ("passed", "torch")


def test_a_torch_mistake_gets_the_same_name(attend):
    report = check_answer(attend, torch_answer(scale=lambda q: 1.0))
    assert report.faults == ["scale.forgotten"]


def test_a_cut_graph_is_named(attend):
    torch = pytest.importorskip("torch")

    def cut(q, k, v):
        weights = torch.softmax((q @ k.transpose(-1, -2)).detach() / math.sqrt(q.shape[-1]), -1)
        return weights @ v, weights

    assert check_answer(attend, cut).faults == ["torch.no_gradient"]


def test_a_leak_of_float64_is_named(attend):
    report = check_answer(attend, torch_answer(change=lambda output: output.double()))
    assert report.faults == ["torch.float64_leak"]


def test_a_tensor_made_on_the_cpu_is_named(attend):
    torch = pytest.importorskip("torch")
    report = check_answer(
        attend, torch_answer(change=lambda out: out * torch.ones(1, out.shape[-1]))
    )
    assert "torch.device" in report.faults


def test_calling_torchs_own_attention_is_named():
    torch = pytest.importorskip("torch")
    exercise = make_exercise()
    exercise.built_from = ("torch.nn.functional.scaled_dot_product_attention",)

    def borrowed(q, k, v):
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v), weights

    assert check_answer(exercise, borrowed).faults == ["uses.the_answer"]


# -- other kinds -------------------------------------------------------------------------------


def test_fix_as_given_is_not_attempted_and_any_change_is_graded():
    exercise = make_exercise("fix")

    @exercise.stub
    def attend(q, k, v):
        weights = normalised(q @ k.swapaxes(-1, -2), -2)
        return weights @ v, weights

    assert check_answer(exercise, attend).status == "not_attempted"
    report = check_answer(exercise, attention_with(lambda q, k, v: 1.0, axis=-2))
    assert report.faults == ["scale.forgotten", "softmax.over_queries"]


def predict():
    exercise = Exercise("demo.variance", kind="predict", title="", statement="", tolerance=0.1)
    exercise.model(lambda: float(np.random.default_rng(0).normal(size=(5000, 64)).sum(1).var()))
    exercise.wrong(8.0, "predict.deviation", "That is the standard deviation.")
    return exercise


@pytest.mark.parametrize(
    ("answer", "status", "faults"),
    [
        (None, "not_attempted", []),
        (64, "passed", []),
        (8, "failed", ["predict.deviation"]),
        (1000, "failed", []),
        ("many", "error", []),
        (float("nan"), "failed", []),
    ],
)
def test_a_prediction_is_compared_with_the_measurement(answer, status, faults):
    report = check_answer(predict(), answer)
    assert (report.status, report.faults) == (status, faults)


def quiz():
    exercise = Exercise("demo.choice", kind="quiz", title="", statement="")
    exercise.option("A", "yes", "No: because.")
    exercise.option("B", "no", "Right: because.", right=True)
    return exercise


@pytest.mark.parametrize(
    ("answer", "status"),
    [("", "not_attempted"), ("b", "passed"), ("A", "failed"), ("C", "error"), (2, "error")],
)
def test_a_quiz_takes_one_letter(answer, status):
    assert check_answer(quiz(), answer).status == status


def parsons():
    exercise = make_exercise(
        "parsons",
        header="def attend(q, k, v):",
        lines={
            "A": "scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])",
            "B": "weights = np.exp(scores)",
            "C": "weights = weights / weights.sum(-1, keepdims=True)",
            "D": "weights = weights / weights.sum(-2, keepdims=True)",
            "E": "return weights @ v, weights",
        },
    )
    exercise.solutions = [Solution("ABCE")]
    return exercise


@pytest.mark.parametrize(
    ("answer", "status", "faults"),
    [
        ("", "not_attempted", []),
        ("abce", "passed", []),
        (["A", "B", "C", "E"], "passed", []),
        ("A, B, D, E", "failed", ["softmax.over_queries"]),
        ("BACE", "error", []),
        ("AXCE", "error", []),
    ],
)
def test_an_order_of_lines_is_run(answer, status, faults):
    report = check_answer(parsons(), answer)
    assert (report.status, report.faults) == (status, faults)


def catch():
    exercise = Exercise("demo.square", kind="catch", title="", statement="")
    exercise.model(lambda x: x.sum(-1))
    exercise.black_box(lambda x: x.sum(-1 if x.ndim == 1 else -2))

    @exercise.program("catch.square", "One axis hides it.", when=lambda x: x.ndim == 1)
    def square():
        return np.ones(3)

    exercise.solutions.append(Solution(lambda: np.arange(6.0).reshape(2, 3)))
    return exercise


@pytest.mark.parametrize(
    ("answer", "status", "faults"),
    [
        (np.arange(6.0).reshape(2, 3), "passed", []),
        ({"x": np.arange(4.0).reshape(2, 2)}, "passed", []),
        (np.ones((2, 2)), "failed", []),
        (np.ones(3), "failed", ["catch.square"]),
        ((np.ones(3), np.ones(3)), "error", []),
        (None, "not_attempted", []),
    ],
)
def test_an_input_that_catches_a_wrong_function(answer, status, faults):
    report = check_answer(catch(), answer)
    assert (report.status, report.faults) == (status, faults)


# -- the report ------------------------------------------------------------------------------------


def reports():
    exercise = make_exercise()
    answers = [
        attention_with(),
        attention_with(axis=-2),
        attention_with(power=1.01),
        lambda q, k, v: q @ np.zeros((99, 1)),
        exercise.stub_function,
    ]
    return [check_answer(exercise, answer) for answer in answers]


@pytest.mark.parametrize("report", reports(), ids=lambda r: r.status)
def test_one_report_says_the_same_as_text_html_and_json(report):
    as_json = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert as_json["status"] == report.status
    for fault in report.mistakes:
        assert fault.says in report.to_text()
        assert fault.says in report.to_html()
        assert fault.id in as_json["faults"]
    assert report.to_html().count("<section") == report.to_html().count("</section>") == 1


def test_html_escapes_what_the_learner_wrote(attend):
    def bad(q, k, v):
        raise ValueError("<script>alert(1)</script>")

    assert "<script>" not in check_answer(attend, bad).to_html()


# -- comparing -----------------------------------------------------------------------------------


def test_nan_must_stand_in_the_same_places():
    a, b = np.array([1.0, np.nan]), np.array([np.nan, 1.0])
    assert distance(a, b) == FAR
    assert distance(a, a.copy()) == 0


def test_rounding_around_zero_is_no_difference():
    assert distance(np.zeros(3), np.full(3, 1e-17)) < 1e-10


# -- the audit -------------------------------------------------------------------------------------


def test_the_audit_finds_nothing_wrong_with_a_sound_exercise():
    exercise = make_exercise()
    exercise.backends = ("numpy",)
    tried, refused = audit(exercise, most_triples=20)
    assert [t for t in tried if not t.holds] == []
    assert refused == []


def test_the_audit_refuses_faults_that_are_one_function():
    exercise = make_exercise()
    exercise.fault("softmax.columns", "The same again.", axis=2)
    assert any("softmax.over_queries softmax.columns" in line for line in audit(exercise)[1])


def test_the_audit_refuses_a_fault_that_no_probe_shows():
    exercise = make_exercise()
    exercise.fault("scale.same", "Harmless.", factor=lambda q, k, v: q.shape[-1] ** -0.5)
    assert any("scale.same lie" in line for line in audit(exercise)[1])


def test_the_audit_refuses_a_solution_that_is_wrong():
    exercise = make_exercise()

    @exercise.solution("wrong")
    def attend(q, k, v):
        return attention_with(axis=-2)(q, k, v)

    wrong = [t for t in audit(exercise)[0] if not t.holds]
    assert [t.got for t in wrong] == ["softmax.over_queries"]


def test_every_habit_has_a_reason():
    assert all(habit.says and habit.why for habit in HABITS)
    assert len({habit.id for habit in HABITS}) == len(HABITS)
