"""The page at ``/``, in a browser."""
