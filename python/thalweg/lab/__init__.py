"""Emulated networks that live: the keeper of a lab, who controls it, stress, and what is left to clean up."""
