# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # One program, many readings
#
# A model is written once, as a NumPyro program. To infer is to *read* the program: to change what
# one of its sites means, and to leave the rest alone. Here is a program that is in no paper. A shop
# counts what it sells of each article on each day. Some campaigns, each of which runs on a day or
# does not, raise the sales of some articles; which ones ran was never written down.

# %%
import os

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.infer import MCMC, NUTS, Predictive

from latentbits import EM, TruncatedEM, inspect, marginal

small = "LATENTBITS_SMALL" in os.environ  # set by a test: everything runs, little is learned


def campaigns(sales=None, *, num_campaigns, num_days=None, num_articles=None):
    if sales is not None:
        num_days, num_articles = sales.shape
    lift = numpyro.sample(
        "lift", dist.Gamma(0.5, 0.1).expand((num_campaigns, num_articles)).to_event(2)
    )
    base = numpyro.sample("base", dist.Gamma(2.0, 1.0).expand((num_articles,)).to_event(1))
    often = numpyro.sample("often", dist.Uniform(0.0, 1.0))
    with numpyro.plate("days", num_days):
        on = dist.Bernoulli(probs=jnp.broadcast_to(often, (num_campaigns,)))
        running = numpyro.sample("running", on.to_event(1))
        numpyro.sample("sold", dist.Poisson(base + running @ lift).to_event(1), obs=sales)


# %% [markdown]
# It simulates, as any program does.

# %%
true_lift = jnp.array([[9.0, 9, 0, 0, 0, 0], [0, 0, 7, 7, 0, 0], [0, 6, 0, 0, 0, 12]])
truth = {"lift": true_lift, "base": jnp.full(6, 2.0), "often": jnp.array(0.3)}
drawn = Predictive(campaigns, truth, num_samples=1, batch_ndims=0)(
    random.key(0), num_campaigns=3, num_days=150, num_articles=6
)
sales = drawn["sold"].reshape(150, 6).astype(float)
inspect(campaigns, (sales,), {"num_campaigns": 3})

# %% [markdown]
# ## Read outward: the campaigns are summed out
#
# `marginal` turns the observed site into the mixture over all states of the latent one. What is
# left is continuous, so NUTS runs on it.

# %%
num_draws = 5 if small else 150
sampler = MCMC(
    NUTS(marginal(campaigns)), num_warmup=num_draws, num_samples=num_draws, progress_bar=False
)
sampler.run(random.key(1), sales, num_campaigns=3)
often = sampler.get_samples()["often"]
print(f"share of days with a campaign: {often.mean():.2f} ± {often.std():.2f}, drawn with 0.30")

# %% [markdown]
# ## Read inward: EM
#
# The same table of states, softmaxed, is the E-step of EM. This program has no closed-form M-step;
# it gets quasi-Newton steps on the expected log joint without anything being written for it.

# %%
start = {"lift": 2.0 * random.uniform(random.key(2), (3, 6)), "base": sales.mean(0)}
em = EM(campaigns)
fit = em.run(
    random.key(3), 2 if small else 20, sales, num_campaigns=3, init_params={**start, "often": 0.5}
)
assert (jnp.diff(fit.losses) < 0.05).all()  # it never goes up, but for rounding
print(fit.params["lift"].round(1))

# %% [markdown]
# ## Read little: truncated EM
#
# With many latents not all states can be looked at. `TruncatedEM` looks at the few that can matter
# for a day, and says how much of the posterior it estimates to have missed at least.

# %%
few = TruncatedEM(campaigns, max_active=2, num_candidates=2)
posterior = few.posterior(fit.params, sales, num_campaigns=3)
exact = em.posterior(fit.params, sales, num_campaigns=3)
assert (posterior.evidence <= exact.evidence + 1e-3).all()
lost = 1 - jnp.exp(posterior.evidence - exact.evidence)
print(f"posterior mass missed: estimated {posterior.missed.mean():.3f}, true {lost.mean():.3f}")
