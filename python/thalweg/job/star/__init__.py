"""A job with a server: the server's side, its clients' side and their processes, on one machine or on several."""
