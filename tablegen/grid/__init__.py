"""Dense tables over mu and log10 sigma: plan, fill, certify."""
