"""Sphinx builds the documentation by this file: ``sh scripts/docs.sh``.

Nothing is fetched, neither by the build nor by a page: the inventories of other projects are in
``inventories``, and what renders formulas in ``_static/katex``. Our own extensions of Sphinx are in
``site``.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as installed
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

project = "qpruntime and tablegen"
author = "qpruntime developers"
copyright = author
version = release = installed("qpruntime")

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "executed_pages",
    "files_outside",
    "formulas",
    "help_of_commands",
    "names_in_docstrings",
]
root_doc = "index"
# Pages about other libraries show their code alone if one of these is not installed.
OTHER_LIBRARIES = {
    "from-other-libraries": ("GPy", "gpytorch", "gpboost"),
    "other-libraries": ("jax", "gpytorch", "GPy"),
}
pages_shown_only = tuple(
    page for page, modules in OTHER_LIBRARIES.items() if not all(map(find_spec, modules))
)
exclude_patterns = ["_build", "inventories", "gallery", "site", "**/GALLERY_HEADER.rst"]
# The quick build leaves out what is written about extras that are not installed.
EXTRAS = {"deep": "optax", "onnx": "onnx", "optuna": "optuna", "sktime": "sktime"}
QUICK = "QP_DOCS_QUICK" in os.environ
if QUICK:
    absent = [name for name, module in EXTRAS.items() if not find_spec(module)]
    exclude_patterns += [f"api/{name}.rst" for name in absent]
    suppress_warnings = ["toc.excluded"]
    nitpick_ignore_regex = [(r"py:.*", rf"(qpruntime\.)?(bayesopt\.)?{name}.*") for name in absent]
templates_path = ["_templates"]
nitpicky = True
smartquotes = False
default_role = "py:obj"

# Markdown. Addresses of headings are those that a code host gives them.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# Signatures have defaults; docstrings have the types.
autodoc_typehints = "none"
autodoc_member_order = "groupwise"
autosummary_generate = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = True
numpydoc_xref_aliases = {
    **dict.fromkeys(("array-like", "array_like"), "numpy.typing.ArrayLike"),
    **dict.fromkeys(("callable", "function"), "collections.abc.Callable"),
    **dict.fromkeys(("scikit-learn kernel", "Kernel"), "sklearn.gaussian_process.kernels.Kernel"),
    "estimator": "sklearn.base.BaseEstimator",
    "sequence": "collections.abc.Sequence",
    "bool": ":class:`python:bool`",
    **{word: word for word in ("generator", "scalar")},
    "path": "os.PathLike",
    "Generator": "numpy.random.Generator",
    **{
        name: f"qpruntime.{name}"
        for name in ("Inducing", "Likelihood", "Posterior", "Search", "Series", "Table")
    },
    **{
        name: f"{place}.{name}"
        for name, place in {
            "CorrectedEvidence": "qpruntime.inference.corrections.corrected",
            "CrossFitted": "qpruntime.estimators.prior_mean",
            "Lookups": "qpruntime.inference.posterior",
            "CorrectedMarginals": "qpruntime.inference.corrections.marginals",
            "Optimum": "qpruntime.learning.optimise",
            "Sites": "qpruntime.inference.sites",
        }.items()
    },
}
# Words of types that are no names, and values, which no page describes.
numpydoc_xref_ignore = "all"

intersphinx_mapping = {
    name: (address, f"inventories/{name}.inv")
    for name, address in {
        "python": "https://docs.python.org/3/",
        "numpy": "https://numpy.org/doc/stable/",
        "scipy": "https://docs.scipy.org/doc/scipy/",
        "sklearn": "https://scikit-learn.org/stable/",
    }.items()
}

# The quick build runs one example, which takes a second, and shows the code of the others.
sphinx_gallery_conf = {
    "examples_dirs": ["gallery"],
    "gallery_dirs": ["auto_gallery"],
    # Their names begin with numbers.
    "within_subsection_order": "FileNameSortKey",
    # Cells show what they print, and not what their last line happens to return.
    "capture_repr": (),
    "filename_pattern": r"plot_05_" if QUICK else r"plot_",
    "ignore_pattern": r"(^|/)(__init__|conftest)\.py",
    "copyfile_regex": r".*\.(csv|npz)",
    "abort_on_example_error": True,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    # Pages of objects show the examples that use them, and code of examples leads to these pages.
    "doc_module": ("qpruntime", "tablegen"),
    "backreferences_dir": "api/generated/examples",
    "reference_url": {"qpruntime": None, "tablegen": None},
    "plot_gallery": True,
    "min_reported_time": 1,
    # Each example starts with the style of all figures.
    "reset_modules": ("matplotlib", "seaborn", "figure_style.set_style"),
    # The page of times would load scripts from elsewhere.
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_favicon = "_static/mark.svg"
html_title = "qpruntime"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "logo": {
        "text": "qpruntime",
        "image_light": "_static/mark.svg",
        "image_dark": "_static/mark.svg",
        "alt_text": "",
    },
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["sphinx-version"],
    "footer_end": ["theme-version"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "back_to_top_button": False,
}
html_context = {"default_mode": "auto"}
# Pages without others beneath or beside them.
ALONE = ("index",)
html_sidebars = {name: [] for name in ALONE}
