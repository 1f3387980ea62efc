"""``python -m pymodel``: the command without the RTL."""

import sys

from pymodel.cli import main

sys.exit(main())
