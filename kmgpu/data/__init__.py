"""Data without a framework: sample order, sources, batches (NumPy only)."""
