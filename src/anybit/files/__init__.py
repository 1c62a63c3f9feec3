"""Files: bounded reading, atomic writing, tensors, digests and signatures."""
