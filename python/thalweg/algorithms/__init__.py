"""What the parties compute: local training, and how updates are combined."""
