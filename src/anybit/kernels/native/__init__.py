"""C++ kernels for one client on one core: convolutions, norms and pools over memory that has the image last.

Libraries are made for many channels. The layers of federated learning have few, but a batch of images is always there:
with the image as last dimension every operation is a row of full vectors, whatever the shape of the layer. The sources
lie beside this file and are compiled when a run first asks for them (see compiled.py); nothing happens at import.
"""

from anybit.kernels.native.compiled import check_compiler, library, missing
from anybit.kernels.native.layers import use_native

__all__ = ["check_compiler", "library", "missing", "use_native"]
