"""Running labs: the supervisor process of a lab, its clients, stress on parties, and cleaning up after crashes."""
