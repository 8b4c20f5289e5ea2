# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Annotators: five anaesthetists and 45 patients
#
# Before an operation anaesthetists grade a patient from 1 (fit) to 4 (severely ill).
# Five of them read the records of 45 patients; the first read each record three times.
# **Which grade is right for each patient, and how does each anaesthetist err?**
#
# The table is that of A. P. Dawid and A. M. Skene, *Maximum likelihood estimation of
# observer error-rates using the EM algorithm* (1979).

# %% tags=["parameters"]
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

from latentbits import EM, posterior_draws

num_steps, num_draws = 500, 1000

patients = """1111111 3334334 1122122 2223121 2223222 2223322 1222111 3333433 2222223
2322223 4444444 2223343 1111111 2223212 1211111 1112111 1111111 1111111 2222221
2221322 2222222 2222221 2223222 2212222 1111111 1111111 2322222 1111111 1111111
1121121 1111111 3333233 1111111 2222222 2223232 4334343 2212232 2323233 3333432
1111111 1111111 1212111 2322222 1211111 2222222"""
doctors = np.array([0, 0, 0, 1, 2, 3, 4])  # who wrote each of a patient's seven grades
wide = np.array([[int(x) for x in row] for row in patients.split()]) - 1
label = wide.ravel()
doctor = np.tile(doctors, len(wide)).astype(np.int32)
patient = np.repeat(np.arange(len(wide), dtype=np.int32), len(doctors))
print(
    f"{len(label)} labels; for example patient {patient[7] + 1}: grades {wide[1] + 1}"
)

# %% [markdown]
# ## The model: a row is a label
#
# The table has one row for each label, as crowds send them: who labelled what, and how.
# The true grade $z_i$ of patient $i$ is a latent in a plate of its own. A label reads it
# through an index:
#
# $$z_i \sim \mathrm{Categorical}(\pi), \qquad
# y_n \sim \mathrm{Categorical}(\theta_{\text{doctor}(n),\, z_{\text{patient}(n)}}).$$
#
# $\theta_{jk\ell}$ is the probability that doctor $j$ says $\ell$ where $k$ is right.


# %%
def annotators(label, num_patients=45, num_doctors=5, grades=4):
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(grades)))
    towards = 1.0 + 2.0 * jnp.eye(grades)  # doctors are right more often than wrong
    prior = dist.Dirichlet(towards).expand([num_doctors, grades]).to_event(2)
    confusion = numpyro.sample("confusion", prior)
    with numpyro.plate("patients", num_patients):
        grade = numpyro.sample("grade", dist.Categorical(share))
    with numpyro.plate("labels", len(label)):
        says = dist.Categorical(confusion[doctor, grade[patient]])
        numpyro.sample("label", says, obs=label)


# %% [markdown]
# ## Maximum likelihood, as in 1979
#
# `EM` finds that a label reads a latent through an index, and sums each patient's grades.
# It needs no M-step from you. Dawid and Skene began at the shares of votes; `EM` tries
# several starts, and says how many of them agree.

# %%
votes = np.stack([(wide == k).mean(1) for k in range(4)], axis=1)  # (patients, grades)
counts = np.zeros((5, 4, 4))
np.add.at(counts.swapaxes(1, 2), (doctor, label), votes[patient])
start = {"share": votes.mean(0), "confusion": counts / counts.sum(2, keepdims=True)}

em = EM(annotators)
of_1979 = em.run(random.key(0), num_steps, label, init_params=start, tolerance=1e-7)
fit = em.run(random.key(0), num_steps, label, tolerance=1e-7)
for name, one in {"from the votes": of_1979, "best of several": fit}.items():
    share = np.sort(np.asarray(one.params["share"]))[::-1].round(2)
    print(f"{name:16s} log likelihood {-one.losses[-1]:.3f}, shares {share}")
print("published                                 shares [0.42 0.40 0.11 0.07]")
print(fit.optima)

# %% [markdown]
# ## Who errs, and how?
#
# A square is the probability of a grade (column) where another is right (row). On the
# diagonal the doctor is right. EM does not know which of its classes is which grade:
# each grade names the class to which it is given most often.

# %%
said = np.asarray(fit.params["confusion"]).sum(0)
order = [int(said[:, grade].argmax()) for grade in range(4)]
confusion = np.asarray(fit.params["confusion"])[:, order]
figure, axes = plt.subplots(1, 5, figsize=(11, 2.6), layout="constrained")
for j, ax in enumerate(axes):
    ax.imshow(confusion[j], cmap="Blues", vmin=0, vmax=1)
    for k in range(4):
        for g in range(4):
            shade = "white" if confusion[j, k, g] > 0.5 else "black"
            words = f"{confusion[j, k, g]:.2f}".lstrip("0")
            ax.text(g, k, words, fontsize=8, ha="center", va="center", color=shade)
    ax.set(title=f"doctor {j + 1}", xlabel="says", xticks=range(4), yticks=range(4))
    ax.set_xticklabels(range(1, 5))
    ax.set_yticklabels(range(1, 5))
axes[0].set_ylabel("right is")

# %% [markdown]
# ## How sure can one be?
#
# Few patients are severely ill, so some entries rest on three or four patients.
# `posterior_draws` gives intervals about the same fit, under the priors of the program.

# %%
draws = posterior_draws(annotators, fit.params, label, num_draws=num_draws)
print(draws)
right = draws.params["confusion"].reshape(-1, 5, 4, 4)[:, :, order, range(4)]
low, high = np.quantile(right, (0.025, 0.975), axis=0)
print("probability to be right, 95 % intervals")
print("doctor     " + "".join(f"grade {g + 1}        " for g in range(4)))
for j in range(5):
    cells = "   ".join(f"{low[j, g]:.2f} to {high[j, g]:.2f}" for g in range(4))
    print(f"{j + 1}          {cells}")

# %% [markdown]
# ## To take home
#
# - A table of labels needs no square form: the program reads the latent of an item
#   through an index, and `EM` and `posterior_draws` take it as it stands.
# - The best optimum need not be the one that a sensible start leads to: from the votes
#   EM ends 1.3 nats below the best, with other shares of the middle grades.
# - Report intervals: for rare grades the data say little about a doctor.
