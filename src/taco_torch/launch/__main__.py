"""``python -m taco_torch.launch``: the command tacorun."""

import sys

from taco_torch.launch.tacorun import main

sys.exit(main())
