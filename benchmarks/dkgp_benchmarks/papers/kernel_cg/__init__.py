"""The kernel CG paper: its Figure 1 for both losses, its Table 2 and its trees (Ratliff and Bagnell 2007)."""
