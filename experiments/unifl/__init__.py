"""UniFL (Chen, Ruan, Liu, Xu), figures 2 to 10."""
