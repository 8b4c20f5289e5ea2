"""``python -m inference`` is the command ``latentbits``."""

import sys

from inference.cli import main

sys.exit(main())
