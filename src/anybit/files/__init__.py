"""Files: bounded reading, atomic writing, tensors, and plain data as dataclasses."""
