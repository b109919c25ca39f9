"""Training at growing sizes, beside what the machine allows: each size goes on where an earlier run left it."""
