"""Every program's example: of its paper's size, and drawn from the density that it states."""

import numpy as np
import pytest

from inference.comparison.compare import compare
from inference.files.cards import CARDS, example, fresh_rows, true_density
from ppl_models import bernoulli_product

SIZES = {"latent_trait": (600, 16), "binary_sparse_coding": (1000, 25),
         "combination_machine": (4000, 64), "noisy_or_network": (1000, 25),
         "clipped_gaussian": (1000, 64), "bernoulli_mixture": (4000, 64)}  # fmt: skip


@pytest.mark.parametrize("name", CARDS)
def test_every_program_has_examples_of_its_own_at_the_size_of_its_paper(name):
    made = example(name, 13, which="small")  # as test_admits draws it
    assert made.values.shape[0] == 13 and np.isfinite(made.values).all() and made.truth
    paper = CARDS[name].paper()
    assert (paper.num_data, paper.num_features) == SIZES.get(
        name, (paper.num_data, paper.num_features)
    )
    for truth in (CARDS[name].paper(), *(make() for make in CARDS[name].more.values())):
        assert truth.params or (truth.draw is not None and truth.density is not None)


def test_rows_of_the_real_machine_are_of_many_states_with_every_unit_on_in_half():
    """With the weights of the binary machine one state would have all of the probability."""
    truth = example("real_combination_machine", 1).truth
    table = (np.arange(1024)[:, None] >> np.arange(10)) & 1
    logits = table @ truth["bias"] + 0.5 * ((table @ truth["weights"]) ** 2).sum(1)
    probs = np.exp(logits - np.logaddexp.reduce(logits))
    assert np.allclose(probs @ table, 0.5, atol=0.01) and np.exp(-probs @ np.log(probs)) > 30


@pytest.mark.parametrize(
    ("name", "which"), [("latent_trait", "paper"), ("noisy_or_network", "patterns")]
)
def test_the_density_of_data_that_no_program_made_is_that_of_its_draws(name, which):
    """Frequencies of whole rows against exp(density): both are drawn from few of them."""
    rows, counts = np.unique(fresh_rows(name, which, 0, 20_000), axis=0, return_counts=True)
    often = counts >= 50
    said = np.exp(true_density(name, which, rows[often]))
    deviation = (counts[often] - 20_000 * said) / np.sqrt(20_000 * said)
    assert often.sum() > 20 and 0.5 < np.mean(deviation**2) < 1.6


def test_data_sets_and_held_out_rows_differ_and_folds_part_the_table():
    first, second = (example("latent_trait", which="paper", number=i).values for i in (0, 1))
    assert (first != second).any()
    rows = {}
    for number in (0, 1, 2, 3, 4):
        comparison = compare(bernoulli_product, np.eye(8)[:, :2], ["EM"], replicate=number)
        rows[number] = comparison.table["values"][comparison.table["held_out"]].sum()
        assert comparison.about["num_test"] == 2
    assert sum(rows[i] for i in range(4)) == 2  # each row was held out once
