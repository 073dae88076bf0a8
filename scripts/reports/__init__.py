"""Reports: tables of the pages in docs and of tables/results, from what is kept.

``python -m scripts.reports pages`` writes the pages.
"""
