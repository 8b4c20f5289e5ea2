# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Latent classes: seven pathologists and no right answer
#
# Seven pathologists looked at 118 slides, and each said of each slide whether it shows
# carcinoma. Nobody knows the truth. **How many kinds of slides are there, whom can one
# trust, and which slides are in dispute?**
#
# The counts of the patterns are those of table 13.1 of A. Agresti, *Categorical Data
# Analysis*, 2nd edition (2002); the study is by J. R. Landis and G. G. Koch (1977).

# %% tags=["parameters"]
import warnings

import matplotlib.pyplot as plt
import numpy as np
from jax import random
from latentbits.models import bernoulli_mixture

from latentbits import EM, BoundWarning, posterior_draws, standard_errors

num_steps, num_draws, sizes = 1000, 1000, (1, 2, 3, 4)

table = """34:0000000 2:0000100 6:0100000 1:0100001 4:0100100 5:0100101 2:1000000
1:1010101 2:1100000 1:1100001 2:1100100 7:1100101 1:1100111 1:1101001 2:1101101
3:1101111 13:1110101 5:1110111 10:1111101 16:1111111"""
counted = [word.split(":") for word in table.split()]
slides = np.array(
    [[int(x) for x in row] for many, row in counted for _ in range(int(many))]
)
print(
    f"{len(slides)} slides; share called carcinoma by A to G {slides.mean(0).round(2)}"
)

# %% [markdown]
# ## The model: a class for each slide, and how many classes
#
# A slide belongs to one of $C$ classes. Given the class the pathologists judge
# independently, each with a probability of their own:
#
# $$P(t_n) = \sum_{c=1}^C \pi_c \prod_{j=1}^7 p_{cj}^{t_{nj}} (1 - p_{cj})^{1 - t_{nj}}.$$
#
# `EM` tries several starts, and says whether they agree. BIC weighs the likelihood
# against the number of parameters; the lowest is best.

# %%
em = EM(bernoulli_mixture)
fits = {}
published = {2: -317.2568, 3: -293.705, 4: -289.2858}  # the manual of R's poLCA
for size in sizes:
    fit = em.run(random.key(0), num_steps, slides, tolerance=1e-7, num_components=size)
    fits[size] = fit
    free = size * 7 + size - 1
    words = f"{size} classes: log likelihood {-fit.losses[-1]:.3f}"
    words += f" (poLCA {published[size]})" if size in published else ""
    bic = 2 * fit.losses[-1] + free * np.log(len(slides))
    agree = "" if size == 1 else f", {str(fit.optima).partition(' on')[0]}"
    print(f"{words}, BIC {bic:.1f}{agree}")

# %% [markdown]
# ## Three classes: the estimates, and what stands at a bound
#
# Several probabilities are exactly 0 or 1: all of a class's slides got the same answer.
# There a standard error does not exist. `standard_errors` leaves it out and says so.

# %%
given = {"num_components": 3}
params = fits[3].params
order = np.argsort(np.asarray(params["probs"]).mean(1))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    error = standard_errors(bernoulli_mixture, params, slides, **given)
share, probs = np.asarray(params["mixing"])[order], np.asarray(params["probs"])[order]
spread = np.asarray(error["probs"])[order]
print("shares of the classes", share.round(3), "(poLCA 0.374 0.182 0.444)")
print("pathologist   " + "".join(f"class {c + 1}        " for c in range(3)))
for j, name in enumerate("ABCDEFG"):
    cells = [
        f"{probs[c, j]:.2f}"
        + ("        " if np.isnan(spread[c, j]) else f" ± {spread[c, j]:.2f} ")
        for c in range(3)
    ]
    print(f"{name:13s} " + "  ".join(f"{x:13s}" for x in cells))
bounds = [x for x in caught if issubclass(x.category, BoundWarning)]
print(f"{int(np.isnan(spread).sum())} of 21 probabilities stand at a bound")

# %% [markdown]
# ## Intervals that hold at a bound
#
# `posterior_draws` gives the posterior of all parameters under uniform priors. It is
# spread over values near a bound, so an interval always exists.

# %%
draws = posterior_draws(bernoulli_mixture, params, slides, num_draws=num_draws, **given)
print(draws)
each = draws.params["probs"].reshape(-1, 3, 7)[:, order]
low, middle, high = np.quantile(each, (0.025, 0.5, 0.975), axis=0)
figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
for c, label in enumerate(("no carcinoma", "in dispute", "carcinoma")):
    places = np.arange(7) + (c - 1) * 0.2
    bars = [middle[c] - low[c], high[c] - middle[c]]
    axes.errorbar(places, middle[c], yerr=bars, fmt="o", color=f"C{c}", label=label)
    axes.plot(places, probs[c], "_", color=f"C{c}", markersize=12)
axes.set_xticks(range(7), list("ABCDEFG"))
axes.set(
    xlabel="pathologist", ylabel="probability to say carcinoma", ylim=(-0.05, 1.05)
)
axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.15))
axes.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# Points are posterior medians with 95 % intervals; dashes are the maximum-likelihood
# estimates. In the first class nearly nobody sees carcinoma. In the third A, B, E and G
# always do, and D and F miss about half. In the second the same four mostly say yes, and
# C, D and F say no.
#
# ## Which slides are in dispute?
#
# The same fit gives each slide its probabilities of the three classes.

# %%
posterior = em.posterior(params, slides, **given)
belongs = np.asarray(posterior.probabilities["component"])[:, order]
likeliest = belongs.argmax(1)
votes = slides.sum(1)
for c, label in enumerate(("no carcinoma", "in dispute", "carcinoma")):
    mine = likeliest == c
    if mine.any():
        print(
            f"{label:13s} {mine.sum():3d} slides with {votes[mine].min()} to "
            f"{votes[mine].max()} votes; sure to 0.9: {(belongs[mine, c] > 0.9).sum()}"
        )
majority = votes >= 4
print(f"a majority of four calls {majority[likeliest == 1].sum()} of the "
      f"{(likeliest == 1).sum()} slides in dispute carcinoma")  # fmt: skip

# %% [markdown]
# ## To take home
#
# - Three classes are enough by BIC, and the third kind matters: slides on which the
#   pathologists do not err at random, but hold two different standards.
# - A probability of 0 or 1 has no standard error. Report an interval of the posterior, or
#   the limit that the warning names.
# - The estimates agree with those that `poLCA` prints.
# - With a file, `latentbits fit LCA --data FILE --set num_classes=3` prints all of this;
#   `latentbits choose` finds the number of classes ([how many](../docs/estimators.md)).
