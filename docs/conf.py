"""Settings of the documentation site (`make docs`), which Sphinx builds from Markdown, docstrings and click's help.

The source folder is the repository's root, of which `include_patterns` names the pages: so a relative link from one
page to another is the same on the site and on a code host. Nothing that is built loads anything from elsewhere.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import dkgp

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "dkgp"
author = "dkgp contributors"
version = release = dkgp.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    # In docs/_ext.
    "command_help",
    "docstrings",
    "mathml",
    "pictures",
    "self_contained",
]

templates_path = [str(Path(__file__).parent / "_templates")]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "notebooks/**",
    "deploy/**.md",
    "benchmarks/README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
]
# Folders that are not even looked into, too.
exclude_patterns = [
    ".*",
    "dkgp",
    "benchmarks/[!R]*",
    "tests",
    "build",
    "dist",
    "*-output",
    "docs/_*",
    "**/.ipynb_checkpoints",
]
nitpicky = True

# ----------------------------------------------------------------------------------------------- Markdown and notebooks

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
# The notebooks are stored without outputs; what they print and draw is made here, in their short form, and an error in
# one is an error. What one writes to its standard error stream is a warning, and so an error too.
os.environ["DKGP_NOTEBOOK_SHORT"] = "1"
nb_execution_mode = "force"
nb_output_stderr = "remove-warn"
nb_execution_raise_on_error = True
nb_execution_timeout = 300

# ----------------------------------------------------------------------------------------------------------- docstrings

# A module's public names are those of its `__all__`, wherever they are defined.
autosummary_ignore_module_all = False
autosummary_imported_members = True
autodoc_default_options = {
    "members": True,
    # scikit-learn's own, on every estimator.
    "exclude-members": "set_decision_function_request, set_fit_request, set_partial_fit_request, set_predict_request, "
    "set_predict_proba_request, set_score_request",
}
autodoc_member_order = "bysource"
# Docstrings say what is what in words; signatures show names and defaults.
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]
# Single backticks are code; `docstrings` makes links of those that name something public.
default_role = "py:obj"

# ------------------------------------------------------------------------------------------------------------- the site

html_theme = "furo"
html_title = f"dkgp {release}"
html_extra_path = ["_root"]
html_static_path = ["_static"]
html_css_files = ["dkgp.css"]
html_copy_source = False
html_show_copyright = False
