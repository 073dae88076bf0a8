"""Examples: what the package does with real data, printed and drawn.

``python -m scripts.examples`` lists the commands.
"""
