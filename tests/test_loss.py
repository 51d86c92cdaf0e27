"""The loss against hand calculation, analytic gradients and randomised padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.loss import LossSettings, k3, policy_loss, token_logprobs, token_weights

PLAIN = LossSettings(0.2, 0.28, entropy=0.0, kl=0.0, aggregation="token", constant_length=4)


def with_fields(**fields):
    return LossSettings(**{**vars(PLAIN), **fields})


def run(logprob, old, advantage, mask, settings=PLAIN, entropy=None, reference=None, weight=None):
    arrays = [jnp.asarray(value, jnp.float32) for value in (logprob, old, advantage)]
    mask = jnp.asarray(mask, bool)
    entropy = jnp.zeros(mask.shape) if entropy is None else jnp.asarray(entropy, jnp.float32)
    reference = None if reference is None else jnp.asarray(reference, jnp.float32)
    ones = jnp.ones(mask.shape[:2]) if weight is None else jnp.asarray(weight, jnp.float32)
    return policy_loss(*arrays, ones, mask, entropy, reference, settings)


def test_clipping_by_hand():
    # ratio 1.5 with A=+1 is clipped at 1.28; with A=-1 it is not; ratio .5 with A=-1 at .8.
    logprob = np.log([[[1.5, 1.5, 0.5]]])
    for advantage, expected, clipped in [(1.0, 1.28 + 1.28 + 0.5, 2), (-1.0, -1.5 - 1.5 - 0.8, 1)]:
        total, count, sums = run(logprob, np.zeros((1, 1, 3)), [[advantage]], np.ones((1, 1, 3)))
        np.testing.assert_allclose(total, -expected, rtol=1e-6)
        assert count == 3
        assert sums["clipped"] == clipped


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_sum_and_count_do_not_depend_on_the_split(aggregation):
    settings = with_fields(aggregation=aggregation)
    random = np.random.default_rng(0)
    mask = np.arange(5)[None, None] < random.integers(1, 6, size=(8, 2, 1))
    logprob = random.normal(size=mask.shape)
    advantage = random.normal(size=(8, 2))
    whole = run(logprob, logprob * 0, advantage, mask, settings)[:2]
    for parts in (2, 4, 8):
        pieces = [
            run(
                logprob[i::parts],
                logprob[i::parts] * 0,
                advantage[i::parts],
                mask[i::parts],
                settings,
            )
            for i in range(parts)
        ]
        total, count = sum(p[0] for p in pieces), sum(p[1] for p in pieces)
        np.testing.assert_allclose(total / count, whole[0] / whole[1], rtol=1e-5)


def test_token_mean_weighs_tokens_not_sequences():
    # Token losses: A [4], B [1, 1, 1] -> 7/4; the mean of means would be 2.5.
    mask = np.array([[[1, 0, 0]], [[1, 1, 1]]], bool)
    loss = {"token": 7 / 4, "sequence": (4 + 1) / 2, "constant": (4 / 4 + 3 / 4) / 2}
    for aggregation, expected in loss.items():
        weight, count = token_weights(
            jnp.asarray(mask), jnp.ones((2, 1)), with_fields(aggregation=aggregation)
        )
        values = jnp.array([[[4.0, 9, 9]], [[1.0, 1, 1]]])
        np.testing.assert_allclose((weight * values).sum() / count, expected, rtol=1e-6)


@pytest.mark.parametrize("junk", [1.0, -20.0, 1e9, np.nan, np.inf])
def test_nothing_under_the_mask_is_observable(junk):
    mask = np.array([[[1, 1, 0, 0]]], bool)
    reference = jnp.full((1, 1, 4), -0.7)
    settings = with_fields(entropy=0.1, kl=0.3)

    def loss(logprob, old, entropy):
        return run(logprob, old, [[1.0]], mask, settings, entropy, reference)

    clean = np.full((1, 1, 4), -0.5, np.float32)
    dirty = np.where(mask, clean, junk).astype(np.float32)
    gradient = jax.grad(lambda value, *rest: loss(value, *rest)[0])
    for a, b in zip(
        jax.tree.leaves(loss(clean, clean, clean)),
        jax.tree.leaves(loss(dirty, dirty, dirty)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(gradient(clean, clean, clean), gradient(dirty, dirty, dirty))


def test_fully_masked_batch_is_zero_and_finite():
    total, _, _ = run(
        np.zeros((2, 1, 3)), np.zeros((2, 1, 3)), np.ones((2, 1)), np.zeros((2, 1, 3))
    )
    assert total == 0


def test_k3_is_nonnegative_zero_on_agreement_and_finite_far_away():
    assert k3(jnp.float32(-1.0), jnp.float32(-1.0)) == 0
    assert jax.grad(k3)(jnp.float32(-1.0), jnp.float32(-1.0)) == 0
    value, gradient = jax.value_and_grad(k3)(jnp.float32(-100.0), jnp.float32(-1.0))
    assert np.isfinite(value)
    assert np.isfinite(gradient)
    gaps = jnp.linspace(-30, 30, 301)
    assert (k3(jnp.zeros(301), gaps) >= 0).all()


def test_kl_term_pulls_towards_the_reference():
    """Zero advantages: the larger beta, the nearer the policy ends to the reference."""
    reference = jax.nn.log_softmax(jnp.array([0.0, 1.0, -1.0]))

    def distance_after_training(beta):
        logits = jnp.array([1.0, -0.5, 0.2])
        for step in range(50):
            token = jax.random.categorical(jax.random.key(step), logits, shape=(64,))

            def loss(logits, token=token):
                logprob = jax.nn.log_softmax(logits)[token].reshape(1, 64, 1)
                frozen = reference[token].reshape(1, 64, 1)
                settings = with_fields(kl=beta)
                total, count, _ = run(
                    logprob,
                    jax.lax.stop_gradient(logprob),
                    np.zeros((1, 64)),
                    np.ones((1, 64, 1)),
                    settings,
                    reference=frozen,
                )
                return total / count

            logits -= 0.5 * jax.grad(loss)(logits)
        policy = jax.nn.log_softmax(logits)
        return float((jnp.exp(policy) * (policy - reference)).sum())

    still, weak, strong = (distance_after_training(beta) for beta in (0.0, 0.1, 1.0))
    start = jax.nn.log_softmax(jnp.array([1.0, -0.5, 0.2]))
    np.testing.assert_allclose(still, (jnp.exp(start) * (start - reference)).sum(), rtol=1e-5)
    assert strong < weak < still


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3])
def test_token_logprobs_are_tempered_and_chunked(temperature):
    random = np.random.default_rng(0)
    hidden, head = random.normal(size=(37, 8)), random.normal(size=(8, 11))
    target = random.integers(0, 11, size=37)
    logits = hidden @ head / temperature
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for chunk in (1024, 8, 37):
        logprob, entropy = token_logprobs(
            jnp.asarray(hidden, jnp.float32),
            jnp.asarray(head, jnp.float32),
            jnp.asarray(target),
            temperature,
            chunk,
        )
        np.testing.assert_allclose(logprob, expected[np.arange(37), target], atol=1e-5)
        np.testing.assert_allclose(entropy, -(np.exp(expected) * expected).sum(-1), atol=1e-5)


def test_tempered_probability_by_hand():
    logprob, _ = token_logprobs(jnp.ones((1, 1)), jnp.array([[2.0, 0.0]]), jnp.array([0]), 0.5)
    np.testing.assert_allclose(logprob, [-0.01815], atol=1e-5)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_a_member_of_weight_three_counts_like_three(aggregation):
    settings = with_fields(aggregation=aggregation, entropy=0.1, kl=0.2)
    random = np.random.default_rng(3)
    logprob = -random.random((2, 2, 4))
    old, reference, entropy = logprob - 0.1, logprob + 0.3, random.random((2, 2, 4))
    mask = np.arange(4) < random.integers(1, 5, (2, 2, 1))
    advantage = random.normal(size=(2, 2))
    three = lambda array: np.repeat(array, [3, 1], axis=1)  # noqa: E731
    got = run(logprob, old, advantage, mask, settings, entropy, reference, [[3, 1], [3, 1]])
    want = run(
        *[three(a) for a in (logprob, old, advantage, mask)],
        settings, three(entropy), three(reference),
    )  # fmt: skip
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
