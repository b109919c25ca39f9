"""The price of worker deaths, cut networks and killed commands, in a solve and in variances; `job` is its spine."""
