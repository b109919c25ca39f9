"""Methods that minimise a regularised risk, raced to one relative gap, and kernel CG's iterations against a root."""
