"""Many classes, or a rare one: generated problems of that kind, and who is measured on them."""
