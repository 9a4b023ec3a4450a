"""One table with many systems that move model updates: the same work, over the same emulated paths, by turns."""
