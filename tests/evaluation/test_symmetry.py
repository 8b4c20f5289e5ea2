"""Parameters that the likelihood cannot tell apart are brought together."""

import numpy as np

from inference.evaluation.symmetry import align_to
from inference.files.cards import example
from ppl_models import bernoulli_mixture, latent_trait


def test_alignment_undoes_what_the_likelihood_cannot_see():
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(2, 2)))
    weights = rng.normal(size=(2, 7))
    turned = {"weights": (turn @ weights)[None, None], "bias": np.zeros((1, 1, 7))}
    wanted = {"weights": weights, "bias": np.zeros(7)}
    aligned = align_to(latent_trait, turned, wanted, ((np.eye(7),), {}))
    np.testing.assert_allclose(aligned["weights"][0, 0], weights, atol=1e-12)
    made = example("bernoulli_mixture", 80, which="small")
    order = [2, 0, 1]
    mixed = {"probs": made.truth["probs"][order], "mixing": made.truth["mixing"][order]}
    back = align_to(bernoulli_mixture, mixed, made.truth, ((made.values,), made.sizes))
    np.testing.assert_array_equal(back["probs"], made.truth["probs"])
    np.testing.assert_array_equal(back["mixing"], made.truth["mixing"])
