"""`python -m minicompile`: the command line. This module must not do anything else."""

import sys

from minicompile.cli import main

sys.exit(main())
