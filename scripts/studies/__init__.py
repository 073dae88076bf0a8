"""Studies: which approximation is right, what options change, and the published tables again.

``python -m scripts.studies`` lists the commands.
"""
