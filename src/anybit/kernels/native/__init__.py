"""C++ kernels for one client on one core: convolutions, norms and pools over memory that has the image last.

Libraries are made for many channels, and the layers of federated learning have few, but a batch always has many images:
with the image as last dimension every operation works on full vectors, whatever the shape of the layer. The sources lie
beside this file and are compiled when a run first needs them (see compiled.py); nothing happens at import.
"""

from anybit.kernels.native.compiled import check_compiler, library, missing
from anybit.kernels.native.layers import use_native

__all__ = ["check_compiler", "library", "missing", "use_native"]
