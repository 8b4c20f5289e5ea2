# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # A hidden Markov chain: quiet years and restless years
#
# How many earthquakes of magnitude 7 or more were there in each year from 1900 to 2006?
# The counts vary more than a Poisson distribution allows, and high years come together.
# **Does the earth change between states, how many are there, and when did it change?**
#
# The counts are those of W. Zucchini and I. L. MacDonald, *Hidden Markov Models for Time
# Series* (2009), table 1.1; their results stand beside ours.

# %% tags=["parameters"]
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.contrib.control_flow import scan
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS, init_to_value

from latentbits import EM, latent_posterior, marginal

num_steps, num_draws, sizes = 500, 300, (2, 3)

counts = """13 14 8 10 16 26 32 27 18 32 36 24 22 23 22 18 25 21 21 14 8 11 14 23 18
17 19 20 22 19 13 26 13 14 22 24 21 22 26 21 23 24 27 41 31 27 35 26 28
36 39 21 17 22 17 19 15 34 10 15 22 18 15 20 15 22 19 16 30 27 29 23 20
16 21 21 25 16 18 15 18 14 10 15 8 15 6 11 8 7 18 16 13 12 13 20 15 16
12 18 15 16 13 15 16 11 11"""
quakes = np.array(counts.split(), int)
years = 1900 + np.arange(len(quakes))
print(f"{len(quakes)} years, mean {quakes.mean():.1f}, variance {quakes.var():.1f}")

# %% [markdown]
# ## The model: a state for each year, a rate for each state
#
# The state of a year depends on the state of the year before, and the count is Poisson
# with the rate of the state:
#
# $$P(s_t = j \mid s_{t-1} = i) = \Gamma_{ij}, \qquad y_t \sim \mathrm{Poisson}(\lambda_{s_t}).$$
#
# It is written with NumPyro's `scan`, as a chain of any length.


# %%
def chain(counts, num_states):
    even = dist.Dirichlet(jnp.ones(num_states))
    rate = numpyro.sample(
        "rate", dist.Gamma(2.0, 0.1).expand((num_states,)).to_event(1)
    )
    first = numpyro.sample("first", even)
    moves = numpyro.sample("moves", even.expand((num_states,)).to_event(1))
    table = jnp.concatenate([moves, first[None]])  # the last row begins the chain

    def step(before, count):
        state = numpyro.sample("state", dist.Categorical(table[before]))
        numpyro.sample("count", dist.Poisson(rate[state]), obs=count)
        return state, None

    scan(step, num_states, counts)


# %% [markdown]
# ## How many states? EM on the chain
#
# On a chain the E-step is the forward–backward recursion; `EM` recognises the `scan` and
# takes it. AIC and BIC weigh the likelihood against the number of parameters; the lowest
# is best.

# %%
fits = {}
published = {
    2: -341.879,
    3: -328.527,
}  # chains that begin in any state, by EM
for size in sizes:
    em = EM(chain)
    fit = em.run(random.key(0), num_steps, quakes, tolerance=1e-9, num_states=size)
    fits[size] = fit
    order = np.argsort(np.asarray(fit.params["rate"]))
    free = size + (size - 1) + size * (size - 1)
    aic = 2 * fit.losses[-1] + 2 * free
    bic = 2 * fit.losses[-1] + free * np.log(len(quakes))
    theirs = f" (published {published[size]})" if size in published else ""
    rates = np.asarray(fit.params["rate"])[order].round(1)
    print(f"{size} states: log likelihood {-fit.losses[-1]:.3f}{theirs}")
    print(f"    AIC {aic:.1f}, BIC {bic:.1f}, rates {rates}")

# %% [markdown]
# ## The posterior of three states
#
# BIC hardly decides; AIC takes three states, as the book does. `marginal` sums the states
# out of the program, and NUTS draws its parameters from the fit on. Their intervals say
# what 107 years can tell.

# %%
best = fits[sizes[-1]].params
size = len(best["rate"])
# A move that the fit rules out gets a little probability: NUTS cannot begin at zero.
moves = (np.asarray(best["moves"]) + 0.02) / (1 + 0.02 * size)
first = (np.asarray(best["first"]) + 0.02) / (1 + 0.02 * size)
start = {"rate": best["rate"], "moves": jnp.asarray(moves), "first": jnp.asarray(first)}
sampler = MCMC(
    NUTS(marginal(chain), init_strategy=init_to_value(values=start)),
    num_warmup=num_draws,
    num_samples=num_draws,
    num_chains=2,
    chain_method="vectorized",
    progress_bar=False,
)
sampler.run(random.key(1), quakes, num_states=size)
draws = sampler.get_samples()
# States have no names: in each draw they are put in the order of their rates.
each = np.argsort(np.asarray(draws["rate"]), 1)
rate = np.take_along_axis(np.asarray(draws["rate"]), each, 1)
moves = np.asarray(draws["moves"])
stays = np.take_along_axis(np.diagonal(moves, axis1=1, axis2=2), each, 1)
for k in range(size):
    low, middle, high = np.quantile(rate[:, k], (0.025, 0.5, 0.975))
    stay = np.median(1 / (1 - stays[:, k]))
    rhat = split_gelman_rubin(rate[:, k].reshape(2, -1))
    print(
        f"state {k + 1}: {middle:.1f} earthquakes a year ({low:.1f} to {high:.1f}), "
        f"stays for {stay:.0f} years; R̂ {rhat:.3f}"
    )

# %% [markdown]
# ## When did it change?
#
# `latent_posterior` gives the states back for each draw of the parameters: their
# probabilities in each year, and the most probable path.

# %%
every = max(1, len(each) // 100)
some = {site: value[::every] for site, value in draws.items()}
found = latent_posterior(random.key(1), chain, some, quakes, num_states=size)
chance = np.asarray(found.probabilities["state"])  # (draws, years, states)
chance = np.take_along_axis(chance, each[::every, None], 2).mean(0)
expected = chance @ rate.mean(0)
figure, axes = plt.subplots(
    2, 1, figsize=(9, 4), sharex=True, layout="constrained", height_ratios=(2, 1)
)
axes[0].plot(years, quakes, ".-", color="0.6", linewidth=0.8, label="counts")
axes[0].plot(
    years, expected, color="C0", linewidth=2, label="expected, given the states"
)
axes[0].set(ylabel="earthquakes")
axes[0].legend(frameon=False)
axes[1].stackplot(years, chance.T, colors=("#cfe3f3", "#7fb2d9", "#123a5e", "k")[:size])
axes[1].set(ylabel="probability\nof the states", xlabel="year", ylim=(0, 1))
for panel in axes:
    panel.spines[["top", "right"]].set_visible(False)
restless = years[chance.argmax(1) == size - 1]
print(f"restless years: {', '.join(map(str, restless))}")

# %% [markdown]
# ## To take home
#
# - A chain is a `scan` in the program. `EM` fits it, `marginal` sums it out, and
#   `latent_posterior` gives the states back; none of this was written for this model.
# - The likelihoods agree with the published ones. Two states or three is a question of
#   taste here: the criteria disagree.
# - To read the states off one path is to forget how uncertain they are. The probabilities
#   of each year say where the path is a guess.
# - [Coming from hmmlearn or Dynamax](../docs/coming.md) names their calls beside ours.
