"""`python -m latentbits`: the same as the command `latentbits`."""

import sys

from latentbits.inference.cli import start

sys.exit(start())
