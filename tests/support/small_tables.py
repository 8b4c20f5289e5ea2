"""A small table of bits, some of them missing, and how to write one."""

import numpy as np

# Asymmetric on purpose: no two rows, columns or classes can be exchanged unseen.
BITS = np.array([[1, 0, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
HOLES = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]], bool)


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
