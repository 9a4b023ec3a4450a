"""The figures thalweg has to reach, each beside its reference in the same run."""
