"""`python -m mmaccel` is `mmaccel`."""

import sys

from .cli.main import main

if __name__ == "__main__":  # tools that import every module must not start it
    sys.exit(main())
