"""Where training over bad paths stops: Flower's own programs, Flower apps over thalweg, and thalweg's own rounds."""
