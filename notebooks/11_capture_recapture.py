# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Capture and recapture: counting rabbits that were never seen
#
# In 18 nights of trapping 76 rabbits were caught, marked and let go, many of them more
# than once. **How many rabbits are there?** Here one can check: the rabbits lived behind
# a fence, and there were 135.
#
# How many rabbits were caught once, twice, and so on is from W. R. Edwards and L.
# Eberhardt, *Estimating cottontail abundance from livetrapping data*, Journal of Wildlife
# Management 31 (1967).

# %% tags=["parameters"]
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS

from latentbits import EM, latent_posterior, marginal

num_steps, num_draws, num_rows = 2000, 1000, 500
names = ("alike", "two kinds")

nights, there_are = 18, 135
times = {1: 43, 2: 16, 3: 8, 4: 6, 6: 2, 7: 1}  # caught so many times: so many rabbits
caught = np.repeat(list(times), list(times.values()))
# Rows for rabbits that may be there and were never caught.
captures = np.concatenate([caught, np.zeros(num_rows - len(caught), int)])
print(f"{len(caught)} rabbits, {caught.sum()} captures, {num_rows} rows")

# %% [markdown]
# ## The first model: all rabbits are alike
#
# The table gets rows of zeros, more than there can be rabbits. A latent bit says of each
# row whether a rabbit is behind it. A rabbit is caught in each night with probability
# $p$; where no rabbit is, nothing is caught:
#
# $$h_n \sim \mathrm{Bernoulli}(\omega), \qquad y_n \sim \mathrm{Binomial}(18, h_n p).$$
#
# The number of rabbits is the sum of the bits. `EM` gives its estimate in a moment.


# %%
def alike(captures):
    omega = numpyro.sample("omega", dist.Uniform(0, 1))
    p = numpyro.sample("p", dist.Uniform(0, 1))
    with numpyro.plate("rows", len(captures)):
        here = numpyro.sample("here", dist.Bernoulli(omega))
        numpyro.sample("captures", dist.Binomial(nights, here * p), obs=captures)


first = EM(alike).run(random.key(0), num_steps, captures, tolerance=1e-9)
print(f"{num_rows * first.params['omega']:.0f} rabbits, each caught with probability "
      f"{first.params['p']:.3f} a night; there are {there_are}")  # fmt: skip
some = np.arange(1, 8)
binomial = np.exp(dist.Binomial(nights, float(first.params["p"])).log_prob(some))
expected = num_rows * float(first.params["omega"]) * binomial
print("caught 1 to 7 times:", [times.get(int(k), 0) for k in some])
print("expected:           ", [float(round(x, 1)) for x in expected.tolist()])

# %% [markdown]
# Too few, by far. And the model does not fit: more rabbits were caught once, and more
# were caught six or seven times, than it expects.
#
# ## The second model: shy and bold rabbits
#
# Some rabbits walk into traps more easily than others. One more latent for each row says
# which kind the rabbit is.


# %%
def two_kinds(captures):
    omega = numpyro.sample("omega", dist.Uniform(0, 1))
    bold = numpyro.sample("bold", dist.Uniform(0, 1))
    p = numpyro.sample("p", dist.Uniform(0, 1).expand((2,)).to_event(1))
    with numpyro.plate("rows", len(captures)):
        here = numpyro.sample("here", dist.Bernoulli(omega))
        kind = numpyro.sample("kind", dist.Bernoulli(bold))
        rate = jnp.where(kind == 1, p[..., 1], p[..., 0])
        numpyro.sample("captures", dist.Binomial(nights, here * rate), obs=captures)


second = EM(two_kinds).run(random.key(0), num_steps, captures, tolerance=1e-9)
print(second.optima)
p = np.sort(np.asarray(second.params["p"]))
print(f"{num_rows * second.params['omega']:.0f} rabbits; caught with probability "
      f"{p[0]:.3f} or {p[1]:.3f} a night")  # fmt: skip
gain = float(first.losses[-1] - second.losses[-1])
print(f"log likelihood {gain:.2f} higher, for two more parameters")

# %% [markdown]
# ## Intervals: NUTS with the bits summed out
#
# `marginal` sums both latents of each row out; NUTS draws the parameters, and
# `latent_posterior` draws the bits again. Their sum is a draw of the number of rabbits.

# %%
found = {}
for name in names:
    program = {"alike": alike, "two kinds": two_kinds}[name]
    sampler = MCMC(
        NUTS(marginal(program)), num_warmup=num_draws, num_samples=num_draws,
        num_chains=2, chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    sampler.run(random.key(1), captures)
    draws = sampler.get_samples()
    rows = latent_posterior(random.key(2), program, draws, captures)
    number = np.asarray(rows.draws["here"]).sum(-1)
    found[name] = number
    low, middle, high = np.quantile(number, (0.025, 0.5, 0.975))
    rhat = split_gelman_rubin(number.reshape(2, -1).astype(float))
    print(f"{name:10s} {middle:.0f} rabbits, 95 % interval {low:.0f} to {high:.0f}; "
          f"R̂ {rhat:.3f}")  # fmt: skip

# %% [markdown]
# ## Both beside the truth

# %%
figure, axes = plt.subplots(figsize=(9, 2.8), layout="constrained")
bins = np.arange(70, 321, 5)
for name, number in found.items():
    axes.hist(number, bins=bins, density=True, alpha=0.6, label=name)
axes.axvline(there_are, color="k", linewidth=1.5)
axes.annotate(f" there are {there_are}", (there_are, axes.get_ylim()[1] * 0.92))
axes.set(xlabel="number of rabbits", ylabel="posterior density", yticks=[])
axes.legend(frameon=False)
axes.spines[["top", "right", "left"]].set_visible(False)

# %% [markdown]
# ## To take home
#
# - An animal that was never seen is a row of zeros with a latent bit. So capture and
#   recapture is a mixture, and every method for mixtures applies.
# - The model in which all rabbits are alike gives a narrow interval without the truth.
#   Counts by number of captures show that it does not fit.
# - With two kinds the interval is wide and holds the truth. How many animals are too shy
#   ever to be caught is an assumption, which no data of this kind can check.
# - Animals that die or leave between visits are a chain for each row; see
#   [your own program](../docs/programs.md).
