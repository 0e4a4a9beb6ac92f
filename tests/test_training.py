"""The recall experiment: gradients by hand, runs that can be taken up again, and both backends."""

import itertools
import math
import time

import numpy as np
import pytest

from sdpa_course.recall import HELD_OUT, Recall, draw_batch, draw_batches, run_path
from sdpa_course.with_numpy import finite_differences, scaled_dot_product_attention, training
from sdpa_course.with_numpy.backward import attention_backward

pytestmark = pytest.mark.filterwarnings("error")  # a NumPy warning is a mistake of ours

SMALL = {"d_k": 6, "keys": 9, "values": 5, "pairs": 4, "asked": 3, "batch": 2, "d_model": 7}
KINDS = [
    {},
    {"scale": 1.0},
    {"qk_norm": True},
    {"normaliser": "sigmoid"},
    {"normaliser": "none"},
    {"normaliser": "uniform"},
]


def small(**settings):
    return Recall(**{**SMALL, "d_v": 3, **settings})


def test_a_sequence_holds_each_key_once_and_answers_what_stands_with_the_key():
    batch = draw_batch(small(), seed=3, step=5)
    for keys, values, asked, answers in zip(*batch, strict=True):
        assert len(set(keys)) == len(keys) == 4
        stored = dict(zip(keys, values, strict=True))
        assert [stored[key] for key in asked] == list(answers)


def test_batches_depend_on_seed_and_step_and_on_nothing_else():
    for seed, step in itertools.product((0, 1), (0, 1, HELD_OUT)):
        first, again = (draw_batch(small(), seed, step) for _ in range(2))
        assert all(map(np.array_equal, first, again))
    a, b = draw_batch(small(), 0, 0), draw_batch(small(), 0, 1)
    assert not all(map(np.array_equal, a, b))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_gradients_by_hand_are_the_measured_ones(kind):
    heads = training.Heads(small(**kind), seeds=[0, 1])
    batch = draw_batches(heads.task, [0, 1], 0)
    _, gradients = heads.gradients(batch)
    for name in training.LEARNT:

        def loss(x, name=name):
            kept, heads.parameters[name] = heads.parameters[name], x
            value = heads.gradients(batch)[0].sum()
            heads.parameters[name] = kept
            return value

        measured = finite_differences(loss, heads.parameters[name])
        np.testing.assert_allclose(gradients[name], measured, atol=1e-7)


def test_the_table_of_scores_computes_attention_and_its_backward_pass():
    heads = training.Heads(small(), seeds=[0, 1])
    batch = draw_batches(heads.task, [0, 1], 0)
    p, f = heads.parameters, heads.forward(batch)
    n = np.arange(2)[:, None, None]
    q = (p["key_tokens"] @ p["W_q"])[n, batch.asked]
    k = (p["key_tokens"] @ p["W_k"])[n, batch.keys]
    v = (p["value_tokens"] @ p["W_v"])[n, batch.values]
    output, weights = scaled_dot_product_attention(q, k, v, return_weights=True)
    np.testing.assert_allclose(f["weights"], weights, rtol=1e-10)
    np.testing.assert_allclose(f["logits"], output @ p["W_o"][:, None], rtol=1e-10, atol=1e-12)

    right = batch.answers[..., None] == np.arange(5)
    exps = np.exp(f["logits"])
    d_logits = (exps / exps.sum(-1, keepdims=True) - right) / right[0, ..., 0].size
    d_q, _, _ = attention_backward(d_logits @ p["W_o"][:, None].swapaxes(-1, -2), q, k, v, weights)
    d_W_q = np.zeros_like(p["W_q"])
    for i in range(2):
        tokens = p["key_tokens"][i, batch.asked[i]].reshape(-1, 7)
        d_W_q[i] = tokens.T @ d_q[i].reshape(-1, 6)
    np.testing.assert_allclose(heads.gradients(batch)[1]["W_q"], d_W_q, atol=1e-12)


def test_a_head_learns_and_seeds_do_not_touch_each_other():
    task = Recall(d_k=16, keys=12, values=4, pairs=6, asked=4, lr=1e-2, d_model=16, d_v=16)
    both = training.train(task, seeds=[0, 1], steps=60, every=20)
    alone = training.train(task, seeds=[1], steps=60, every=20)
    assert (both["accuracy"][-1] > 0.95).all()
    np.testing.assert_allclose(both["loss"][:, 1:], alone["loss"], rtol=1e-6)
    assert (both.step_reaching(0.9) <= 60).all()
    assert both.median_step(1.1) == math.inf


def test_normed_queries_and_keys_bound_the_scores():
    run = training.train(small(qk_norm=True, lr=0.3), seeds=range(3), steps=30, every=10)
    assert (run["max_score"] <= math.sqrt(6) + 1e-12).all()
    x = np.random.default_rng(0).normal(size=(4, 6)) * 100
    np.testing.assert_allclose(np.linalg.norm(training.qk_norm(x), axis=-1), math.sqrt(6))


def test_the_share_of_entropy_is_1_for_uniform_and_0_for_one_hot_weights():
    weights = np.stack([np.full(7, 1 / 7), np.eye(7)[2]])
    np.testing.assert_allclose(training.entropy_share(weights), [1, 0], atol=1e-12)


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(name, optimiser, tmp_path):
    train = trainer(name)
    task = small(optimiser=optimiser)
    whole = train(task, seeds=[0, 1], steps=20, every=5)
    first = train(task, seeds=[0, 1], steps=9, every=5, cache=tmp_path)
    assert len(first.steps) == 2
    resumed = train(task, seeds=[0, 1], steps=20, every=5, cache=tmp_path)
    assert resumed.finished
    for key in whole.log:
        np.testing.assert_array_equal(whole[key], resumed[key])
    assert [p.suffix for p in tmp_path.iterdir()] == [".npz"]


def test_a_finished_run_is_read_and_not_trained_again(tmp_path, monkeypatch):
    task = small()
    run = training.train(task, seeds=[0], steps=10, every=5, cache=tmp_path)
    monkeypatch.setattr(training.Heads, "update", lambda self, batch: pytest.fail("trained again"))
    again = training.train(task, seeds=[0], steps=10, every=5, cache=tmp_path)
    np.testing.assert_array_equal(run["loss"], again["loss"])
    shorter = training.train(task, seeds=[0], steps=5, every=5, cache=tmp_path)
    assert list(shorter.steps) == [0, 5]


def test_a_broken_file_in_the_cache_counts_as_none(tmp_path):
    task = small()
    path = run_path(tmp_path, "numpy", task, [0], 5)
    training.train(task, seeds=[0], steps=10, every=5, cache=tmp_path)
    for broken in (b"no such file", path.read_bytes()[:100], b""):
        path.write_bytes(broken)
        assert training.train(task, seeds=[0], steps=10, every=5, cache=tmp_path).finished


def test_a_run_stops_when_its_time_is_up_and_can_be_finished_later(tmp_path):
    task = small()
    start = time.monotonic()
    run = training.train(task, seeds=[0], steps=10**6, every=5, seconds=0.2, cache=tmp_path)
    assert not run.finished
    assert time.monotonic() - start < 5
    assert len(run.steps) >= 1


def test_nothing_is_printed_where_stderr_is_no_terminal(capsys):
    training.train(small(), seeds=[0], steps=3, every=1)
    assert capsys.readouterr() == ("", "")


def trainer(name):
    if name == "numpy":
        return training.train
    pytest.importorskip("torch")
    from sdpa_course.with_torch import training as with_torch

    return with_torch.train


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_torch_trains_the_same_heads(kind, optimiser):
    task = small(optimiser=optimiser, lr=0.05, **kind)
    ours = training.train(task, seeds=[0, 1], steps=10, every=5)
    theirs = trainer("torch")(task, seeds=[0, 1], steps=10, every=5)
    for name in ours.log:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-9)


def test_torch_has_the_same_small_functions():
    torch = pytest.importorskip("torch")
    from sdpa_course.with_torch import training as with_torch

    x = np.random.default_rng(0).normal(size=(3, 5))
    weights = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(with_torch.qk_norm(torch.from_numpy(x)), training.qk_norm(x))
    np.testing.assert_allclose(
        with_torch.entropy_share(torch.from_numpy(weights)), training.entropy_share(weights)
    )
