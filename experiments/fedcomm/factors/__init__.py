"""What makes the difference between FedComm's way and the fair one."""
