"""Running labs: the keeper process of a lab, its clients, stress on parties, and cleaning up after crashes."""
