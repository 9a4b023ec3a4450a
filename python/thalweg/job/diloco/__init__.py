"""What peers of DiLoCo exchange, and with whom."""
