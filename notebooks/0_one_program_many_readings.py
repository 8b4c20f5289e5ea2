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
# A shop counts what it sells of each article on each day. Campaigns, each of which runs on a day or
# does not, raise the sales of some articles; which campaigns ran was not recorded. **Can their
# effects be estimated from the sales alone, and how certain are they?**
#
# The model is written once, as the NumPyro program below; it is in no paper. An inference method
# *reads* the program: it changes what one of its sites means and leaves the rest alone. So the
# methods of the papers apply to this program too.

# %% tags=["parameters"]
from itertools import permutations

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS, Predictive

from latentbits import EM, TruncatedEM, inspect, marginal

num_days, num_draws, num_steps = 150, 200, 20


def campaigns(sales=None, *, num_campaigns, num_days=None, num_articles=None):
    if sales is not None:
        num_days, num_articles = sales.shape
    lift = numpyro.sample(
        "lift", dist.Gamma(0.5, 0.1).expand((num_campaigns, num_articles)).to_event(2)
    )
    base = numpyro.sample(
        "base", dist.Gamma(2.0, 1.0).expand((num_articles,)).to_event(1)
    )
    often = numpyro.sample("often", dist.Uniform(0.0, 1.0))
    with numpyro.plate("days", num_days):
        on = dist.Bernoulli(probs=jnp.broadcast_to(often, (num_campaigns,)))
        running = numpyro.sample("running", on.to_event(1))
        numpyro.sample(
            "sold", dist.Poisson(base + running @ lift).to_event(1), obs=sales
        )


# %% [markdown]
# ## Summed out: NUTS
#
# The program simulates, as any NumPyro program does; here are the sales of 150 days. `inspect`
# lists what a method sees of the program: the plate, the latent site inside it and its number of
# values, the parameters outside. `marginal` replaces the observed site by the mixture over all
# states of the latent site,
#
# $$p(y_n \mid \theta) = \sum_{s \in \{0,1\}^3} p(s \mid \theta)\, p(y_n \mid s, \theta).$$
#
# What is left is continuous, so NUTS runs on it; NumPyro alone refuses the vector of bits.

# %%
true_lift = jnp.array([[9.0, 9, 0, 0, 0, 0], [0, 0, 7, 7, 0, 0], [0, 6, 0, 0, 0, 12]])
truth = {"lift": true_lift, "base": jnp.full(6, 2.0), "often": jnp.array(0.3)}
drawn = Predictive(campaigns, truth, num_samples=1, batch_ndims=0)(
    random.key(0), num_campaigns=3, num_days=num_days, num_articles=6
)
sales = drawn["sold"].reshape(num_days, 6).astype(float)
anatomy = inspect(campaigns, (sales,), {"num_campaigns": 3})
(bits,) = anatomy.latents
print(f"plate {anatomy.plate}: {bits.name} {bits.shape} with {bits.num_values} values, "
      f"{anatomy.observed[0]} observed; "
      f"outside: {', '.join(anatomy.parameters)}")  # fmt: skip

sampler = MCMC(
    NUTS(marginal(campaigns)), num_warmup=num_draws, num_samples=num_draws,
    num_chains=2, chain_method="vectorized", progress_bar=False,
)  # fmt: skip
sampler.run(random.key(1), sales, num_campaigns=3)
draws = sampler.get_samples(group_by_chain=True)
often = np.asarray(draws["often"])
print(
    f"share of days with a campaign: {often.mean():.2f} ± {often.std():.2f}, "
    "drawn with 0.30"
)
print(
    f"R̂ {split_gelman_rubin(often):.3f}, "
    f"effective draws {effective_sample_size(often):.0f}"
)

# %% [markdown]
# ## Weighted: EM
#
# The terms of the sum, normalised over the states of each day, are the E-step of EM:
#
# $$r_{ns} = p(s \mid y_n, \theta) = p(s, y_n \mid \theta) / p(y_n \mid \theta).$$
#
# This program has no closed-form M-step; EM takes quasi-Newton steps on the expected log joint
# $\sum_{ns} r_{ns} \log p(s, y_n \mid \theta)$, which it gets from the program as well.

# %%
start = {
    "lift": 2.0 * random.uniform(random.key(2), (3, 6)),
    "base": sales.mean(0),
    "often": 0.5,
}
em = EM(campaigns)
fit = em.run(random.key(3), num_steps, sales, num_campaigns=3, init_params=start)
assert (
    jnp.diff(fit.losses) < 0.05
).all()  # EM never increases its loss, up to rounding
print(
    f"log likelihood per day {-fit.losses[-1] / num_days:.3f} "
    f"after {len(fit.losses)} steps"
)

# %% [markdown]
# ## The estimates side by side
#
# Campaigns have no names, so both estimates are matched to the true ones before they are drawn: a
# likelihood cannot tell two orders of the campaigns apart.


# %%
def matched(lift):
    """The order of campaigns that is nearest to the true one."""
    return min(
        (lift[..., list(order), :] for order in permutations(range(3))),
        key=lambda one: float(abs(one - true_lift).sum()),
    )


each = np.concatenate(
    [[matched(one) for one in chain] for chain in np.asarray(draws["lift"])]
)
low, middle, high = np.quantile(each, (0.025, 0.5, 0.975), axis=0)
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True, layout="constrained")
for campaign, panel in enumerate(axes):
    places = np.arange(1, 7)
    panel.bar(places, true_lift[campaign], color="0.85", label="true")
    bars = [middle[campaign] - low[campaign], high[campaign] - middle[campaign]]
    panel.errorbar(
        places, middle[campaign], yerr=bars, fmt="o", color="C0", label="NUTS, 95 %"
    )
    panel.plot(places, matched(np.asarray(fit.params["lift"]))[campaign], "x",
               color="C1",                markersize=9, label="EM")  # fmt: skip
    panel.set(title=f"campaign {campaign + 1}", xlabel="article", xticks=places)
    panel.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("additional sales per day")
_ = axes[0].legend(frameon=False)

# %% [markdown]
# ## Where it breaks: many campaigns
#
# With $H$ latents there are $2^H$ states. `TruncatedEM` sums over the few that can matter for a day
# and estimates the posterior mass that it leaves out; with three campaigns that can be checked.

# %%
few = TruncatedEM(campaigns, max_active=2, num_candidates=2)
posterior = few.posterior(fit.params, sales, num_campaigns=3)
exact = em.posterior(fit.params, sales, num_campaigns=3)
assert (posterior.evidence <= exact.evidence + 1e-3).all()
lost = 1 - jnp.exp(posterior.evidence - exact.evidence)
print(
    f"posterior mass left out: estimated {posterior.missed.mean():.3f}, "
    f"true {lost.mean():.3f}"
)

# %% [markdown]
# ## To take home
#
# - A sum over the states of the latents is the marginal likelihood; its normalised terms are the
#   posterior. NUTS needs the first, EM the second, and both are read off one program.
# - A program that is in no paper gets the methods of the papers; `inspect` and `latentbits check`
#   say which apply.
# - Report intervals only after the symmetries of the program were removed, as in the figure.
