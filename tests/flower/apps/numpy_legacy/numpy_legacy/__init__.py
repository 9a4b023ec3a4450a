"""The centre of all clients' points, by server_fn and client_fn."""

DIMENSIONS = 3
