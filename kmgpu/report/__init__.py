"""Reports: they only read run directories."""
