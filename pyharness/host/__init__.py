"""The ctypes side: the ABI table, the loader and the session. Only the worker process uses it on a library."""
