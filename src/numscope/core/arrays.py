"""Names for numpy arrays whose dtype numpy's own types cannot tell."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# The elements of a tensor have any dtype, bfloat16 and the kinds of float8 included, for which numpy has no type.
AnyArray: TypeAlias = NDArray[Any]
AnyDtype: TypeAlias = np.dtype[Any]
