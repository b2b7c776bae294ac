"""The command ``python -m appserver``."""

from __future__ import annotations

import sys

from appserver.supervisor import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
