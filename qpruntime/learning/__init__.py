"""Hyper-parameters: objectives, their gradients, and how they are maximised."""
