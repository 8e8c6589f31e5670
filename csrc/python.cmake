# The Python extension; filled in with the torch-facing files.
