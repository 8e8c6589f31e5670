"""``import horovod`` in processes that a program of ``python -m taco_torch.horovod`` has started by
multiprocessing's "spawn" or "forkserver".

Such a process is given its parent's ``sys.path``, on which this file's folder is, and nothing else
of the parent: so what the parent has as a finder is installed here, and then has the name.
"""

import importlib
import sys

import _taco_torch_horovod

# Where a horovod that is installed comes first, it stands on the path before this file.
_taco_torch_horovod.install(first=True)
del sys.modules[__name__]
importlib.import_module(__name__)
