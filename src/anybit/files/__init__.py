"""Files: bounded reading, whole writing, tensors, and plain data as dataclasses."""
