"""`python -m engine VERB ...` is `engine VERB ...`."""

import sys

from engine.cli import main

sys.exit(main())
