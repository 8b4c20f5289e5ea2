"""The oracle: what the papers' formulas say, in plain loops, to hold the programs against.

Nothing here is fast, vectorised or clever, and nothing here imports the code under test. The log
joint of a program is one function ``log_joint_<program>(sites, data, mask=None, **options)`` that
returns one number a datum in float64; ``sites`` holds the parameters and the latents by the names
of the program's sites. Everything that can be read off a log joint (evidence, posterior, moments,
truncation, quadrature, derivatives) is in ``tables`` and serves every program; what belongs to one
paper is in that paper's module.
"""

# ruff: noqa: F401
from oracle.clipped_gaussian import (
    hard_clip_log_evidence,
    log_joint_clipped_gaussian,
)
from oracle.combination_machine import (
    combination_log_evidence,
    combination_log_evidence_gradient,
    combination_log_partition,
    log_joint_bernoulli_mixture,
    log_joint_bernoulli_product,
    log_joint_combination_machine,
    log_joint_real_combination_machine,
    real_combination_log_evidence,
    real_combination_log_evidence_gradient,
    real_combination_log_partition,
)
from oracle.latent_trait import (
    bound_log_evidence,
    bound_m_step,
    bound_posterior,
    bound_update_variational,
    log_joint_latent_trait,
    log_joint_trait_mixture,
)
from oracle.levels import (
    graded_evidence,
    log_joint_categorical_mixture,
    log_joint_graded_trait,
    polytomous_em_step,
)
from oracle.mixed_trait import log_joint_mixed_trait
from oracle.noisy_or_network import (
    gibbs_flip_probability,
    log_joint_noisy_or_network,
    noisy_or_leak_update,
    noisy_or_weight_update,
    noisy_or_weight_update_beta,
)
from oracle.sparse_coding import (
    active_mass,
    candidate_states,
    data_to_keep,
    expected_active_mass,
    log_joint_binary_sparse_coding,
    log_joint_sparse_coding,
    num_data_cut,
    selection_scores,
    sparse_coding_m_step,
    sparse_coding_sparsity,
)
from oracle.tables import (
    all_states,
    finite_difference,
    gauss_hermite,
    joint_states,
    log_evidence,
    log_joint_candidates,
    log_joint_table,
    posterior_mean,
    posterior_second_moments,
    posterior_table,
    quadrature_table,
    truncate_table,
)
