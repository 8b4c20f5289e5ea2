"""What follows from a log joint alone, by a loop over every latent state of every datum.

``states`` is a dict from latent site to an array with one row a state: ``{"causes": (S, H)}``, or
several layers at once, or ``{"component": (S,)}``. A table is (S, N): log p(y_n, s).
"""

import itertools
import math

import numpy as np

from oracle.scalars import log_normal


def all_states(num_bits):
    """The 2^m binary vectors, (2^m, m), the last bit the fastest."""
    return np.array(list(itertools.product((0.0, 1.0), repeat=num_bits))).reshape(-1, num_bits)


def joint_states(**sizes):
    """All joint states of several binary layers: ``joint_states(layer_1=3, layer_2=2)``."""
    names = list(sizes)
    rows = itertools.product(*(list(all_states(sizes[name])) for name in names))
    columns = {name: [] for name in names}
    for row in rows:
        for name, vector in zip(names, row, strict=True):
            columns[name].append(vector)
    return {name: np.array(columns[name]) for name in names}


def log_joint_table(log_joint, parameters, states, data, mask=None, **options):
    """(S, N): the log joint with every datum in the same state, one state after the other."""
    num_states = len(next(iter(states.values())))
    table = np.empty((num_states, len(data)))
    for s in range(num_states):
        sites = dict(parameters)
        for name, values in states.items():
            sites[name] = np.array([values[s]] * len(data))
        table[s] = log_joint(sites, data, mask, **options)
    return table


def log_joint_candidates(log_joint, sites, latents, data, mask=None, **options):
    """(S, N): the log joint where each site in ``latents`` has a leading axis of S candidates."""
    num_candidates = len(sites[latents[0]])
    table = np.empty((num_candidates, len(data)))
    for s in range(num_candidates):
        one = {name: (value[s] if name in latents else value) for name, value in sites.items()}
        table[s] = log_joint(one, data, mask, **options)
    return table


def truncate_table(table, states, kept):
    """The table with −inf at every state that is not in the datum's list ``kept[n]``.

    ``states`` is the (S, H) array of the table's rows; ``kept`` is a list of N lists of states.
    Evidence, posterior and moments of the result are then those of truncation to the lists.
    """
    truncated = np.full(table.shape, -math.inf)
    for n in range(table.shape[1]):
        wanted = {tuple(float(bit) for bit in state) for state in kept[n]}
        for s in range(table.shape[0]):
            if tuple(float(bit) for bit in states[s]) in wanted:
                truncated[s, n] = table[s, n]
    return truncated


def log_sum_exp(values):
    largest = max(values)
    if largest == -math.inf:
        return -math.inf
    total = 0.0
    for value in values:
        total += math.exp(value - largest)
    return largest + math.log(total)


def log_evidence(table):
    """(N,): log Σ_s p(y_n, s)."""
    return np.array([log_sum_exp(list(table[:, n])) for n in range(table.shape[1])])


def posterior_table(table):
    """(S, N): p(s | y_n)."""
    evidence = log_evidence(table)
    posterior = np.empty(table.shape)
    for s in range(table.shape[0]):
        for n in range(table.shape[1]):
            posterior[s, n] = math.exp(table[s, n] - evidence[n])
    return posterior


def posterior_mean(posterior, states):
    """(N, H): ⟨s⟩ for each datum; ``states`` is (S, H)."""
    num_states, num_data = posterior.shape
    mean = np.zeros((num_data, states.shape[1]))
    for n in range(num_data):
        for s in range(num_states):
            for h in range(states.shape[1]):
                mean[n, h] += posterior[s, n] * states[s, h]
    return mean


def posterior_second_moments(posterior, states, other=None):
    """(N, H, K): ⟨s tᵀ⟩ for each datum; ``other`` is a second layer's states, else s itself."""
    other = states if other is None else other
    num_states, num_data = posterior.shape
    moments = np.zeros((num_data, states.shape[1], other.shape[1]))
    for n in range(num_data):
        for s in range(num_states):
            for h in range(states.shape[1]):
                for k in range(other.shape[1]):
                    moments[n, h, k] += posterior[s, n] * states[s, h] * other[s, k]
    return moments


def gauss_hermite(num_factors, num_nodes):
    """Nodes (S, Q) and log weights (S,) for expectations under N(0, I_Q), as a full grid."""
    points, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    nodes, log_weights = [], []
    for index in itertools.product(range(num_nodes), repeat=num_factors):
        nodes.append([points[i] for i in index])
        log_weights.append(sum(math.log(weights[i] / math.sqrt(2.0 * math.pi)) for i in index))
    return np.array(nodes), np.array(log_weights)


def quadrature_table(log_joint, parameters, nodes, log_weights, data, mask=None, **options):
    """(S, N): log weight + log p(y_n | node), for programs with factors ~ N(0, I).

    ``log_evidence`` of it is the quadrature's log ∫ p(y_n | x) p(x) dx, and the posterior table and
    its moments are those of the quadrature too.
    """
    table = log_joint_table(log_joint, parameters, {"factors": nodes}, data, mask, **options)
    for s in range(len(nodes)):
        log_prior = sum(log_normal(value, 0.0, 1.0) for value in nodes[s])
        for n in range(len(data)):
            table[s, n] += log_weights[s] - log_prior
    return table


def finite_difference(function, parameters, step=1e-5, relative=False):
    """Central differences of ``function(parameters)``, an array, in every entry of every parameter.

    Returns a dict of arrays of shape parameter.shape + output.shape. The error is of the order of
    step² |f'''| / 6 + 1e-16 |f| / step: about 1e-10 for functions of ordinary size. ``relative``
    makes the step a share of the entry, for entries near a pole at zero and none at it.
    """
    derivatives = {}
    for name, value in parameters.items():
        value = np.asarray(value, dtype=np.float64)
        rows = []
        for index in np.ndindex(*value.shape):
            width = step * abs(value[index]) if relative else step
            above, below = value.copy(), value.copy()
            above[index] += width
            below[index] -= width
            upper = np.asarray(function({**parameters, name: above}))
            lower = np.asarray(function({**parameters, name: below}))
            rows.append((upper - lower) / (above[index] - below[index]))
        derivatives[name] = np.array(rows).reshape(value.shape + rows[0].shape)
    return derivatives
