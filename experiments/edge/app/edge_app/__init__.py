"""The app of the edge experiments, for Flower and for thalweg's own rounds."""
