"""The fixed point of sites: one loop of sweeps for every engine, the orders, and how it ended."""
