"""Exempt what has been imported from garbage collection, in the process from which our programs are forked.

Import it last there. A fork's collections then pass over a few hundred thousand objects, and copy none of their pages.
"""

import gc

gc.collect()
gc.freeze()
