"""The ctypes side: ABI table, loader, session. Only the worker process uses them on a library."""
