"""The experiments of the combination machine, at small size."""

import numpy as np

from inference.studies.papers import combination


def test_orderings_are_counted_over_the_seeds():
    def measures(losses):
        value = combination.Measure(np.array(losses), np.zeros(3))
        return dict.fromkeys(combination.MEASURES, value)

    test = {
        "true_model": measures([0.4, 0.4, 0.4]),
        "gradient": measures([0.5, 0.43, 0.5]),
        "pursuit": measures([0.9, 0.9, 0.45]),
        "pursuit_gradient_100": measures([0.6, 0.6, 0.6]),
        "pursuit_gradient": measures([0.41, 0.44, 0.42]),
    }
    numbers = combination.summary(combination.Trial({}, test, test))
    np.testing.assert_allclose(
        list(numbers["orderings"].values()), [2 / 3, 2 / 3, 1.0, 0.04, 0.07 / 3], rtol=1e-6
    )
    np.testing.assert_allclose(numbers["table"]["gradient"]["log_loss"]["test"], 1.43 / 3)
    error = np.std([0.5, 0.43, 0.5], ddof=1) / 3**0.5
    np.testing.assert_allclose(numbers["standard_errors"]["gradient"]["log_loss"]["test"], error)
