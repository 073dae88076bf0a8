"""Series: one input and a Markov kernel; EP and QP in time and memory that grow with N."""
