"""Access to a service: tokens with scopes, and the audit log of what was done."""

# Hangs on dkgp/commands/run.py.
