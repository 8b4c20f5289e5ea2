"""``python -m inference`` is the command ``latentbits``."""

import sys

from .cli import main

sys.exit(main())
