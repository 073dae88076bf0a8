"""Tests: a folder for each room of the packages, a file or more for each module."""
