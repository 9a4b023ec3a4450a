"""A ClientApp that cannot be imported."""
