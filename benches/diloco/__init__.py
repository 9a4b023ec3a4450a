"""DiLoCo beside data-parallel training and beside other programs: loss, bytes, and the share of time that computes."""
