"""N sites become a `Posterior`: sweeps, their orders, and the fixed point."""
