"""The bound without memory of each row: nothing in its state grows with the rows."""

import jax
import numpy as np
from tools import noisy_copies, quick_run

from inference import BoundEM
from ppl_models import latent_trait

DATA = noisy_copies(0, 40, 8, flip=0.1)


def test_forgetting_the_posteriors_ends_at_the_same_bound():
    ends = {}
    for remember in (True, False):
        method = BoundEM(latent_trait, remember=remember, chunk_size=50)
        result = quick_run(method, 1, 60, DATA)
        ends[remember] = float(result.losses[-1]) / len(DATA)
        lengths = {x.shape[:1] for x in jax.tree.leaves(result.state.memory)}
        assert lengths == ({(len(DATA),)} if remember else set())
    # Six rounds from the prior leave the bound a little looser than a memory that goes on.
    np.testing.assert_allclose(ends[False], ends[True], atol=1e-3)
    assert ends[False] > ends[True] - 1e-4
