"""``python -m inference`` is the command ``latentbits``."""

import sys

from .cli import start

sys.exit(start())
