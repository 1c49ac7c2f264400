"""Methods and labelling rules against models whose gates are known, for `gatewise truth`."""
