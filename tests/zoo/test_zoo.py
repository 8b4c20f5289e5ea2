"""Programs of the zoo: densities with latents summed out against sums over all of their states."""

import numpy as np
import pytest
from every_state import density, somewhere, total
from jax import random
from tools import near
from zoo_programs import ZOO, with_counts

from inference import EM, ProgramError

ALIKE = {
    "annotation_item_difficulty", "annotation_logistic_random_effects", "dawid_skene_wide", "hmm_3",
    "hmm_4", "jolly_seber", "m0", "mb", "recapture_2", "recapture_4",
    "recapture_5", "soft_k_means",
}  # fmt: skip
"""Programs written as others are: `bench_zoo.py` tests them too."""


@pytest.mark.parametrize("name", sorted(ZOO.keys() - ALIKE))
def test_density(name):
    entry = ZOO[name]
    program = with_counts(entry)
    params, latents = somewhere(entry.program, entry.args, entry.most)
    wanted = total(program, entry.args, params, latents)
    assert np.isfinite(wanted)
    near(density(program, entry.args, params), wanted)


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if entry.em])
def test_em_refuses(name):
    """In the words that send one on."""
    with pytest.raises(ProgramError, match=ZOO[name].em):
        EM(ZOO[name].program).init(random.key(0), *ZOO[name].args)
