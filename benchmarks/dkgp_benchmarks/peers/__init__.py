"""Models of other libraries, each run by an interpreter that has it."""
