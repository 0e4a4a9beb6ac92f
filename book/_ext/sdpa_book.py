"""What the book needs of Sphinx and cannot say in `_config.yml`."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

# Names that a page may mention and no inventory of ours defines.
NITPICK_IGNORE: list[tuple[str, str]] = []


def setup(app):
    app.connect("config-inited", ignore_unknown_names)
    app.connect("builder-inited", copy_mathjax)
    app.connect("source-read", skip_torch_cells_without_torch)
    app.connect("config-inited", drop_thebe)
    app.connect("html-page-context", link_reports_to_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def ignore_unknown_names(app, config):
    config.nitpick_ignore = [*config.nitpick_ignore, *NITPICK_IGNORE]


def copy_mathjax(app):
    """Put MathJax beside the pages, so that a formula asks no other host for anything."""
    if app.builder.format != "html":
        return
    package = importlib.util.find_spec(
        "mathjax"
    )  # django-static-mathjax; Django itself is not needed
    if package is None:
        raise RuntimeError("MathJax is missing: pip install -r requirements.txt")
    source = Path(package.submodule_search_locations[0]) / "static" / "mathjax"
    target = Path(app.outdir) / "_static" / "vendor" / "mathjax"
    for part in ("output/chtml", "input/tex/extensions", "a11y", "ui"):
        shutil.copytree(source / "es5" / part, target / part, dirs_exist_ok=True)
    for name in ("base", "en", "nemeth"):
        copy(source / "es5" / "sre" / "mathmaps" / f"{name}.json", target / "sre" / "mathmaps")
    copy(source / "es5" / "tex-chtml.js", target)
    copy(source / "LICENSE", target)


def copy(path, folder):
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, folder)


def drop_thebe(app, config):
    """Jupyter Book adds Thebe's scripts to every page: they fail and name another host."""
    for name, listeners in app.events.listeners.items():
        app.events.listeners[name] = [
            listener
            for listener in listeners
            if listener.handler.__module__.partition(".")[0] != "sphinx_thebe"
        ]
    app.registry.css_files = [css for css in app.registry.css_files if "thebe" not in css[0]]


def link_reports_to_pages(app, pagename, templatename, context, doctree):
    """A report links to a chapter's notebook, which in the book is a page."""
    if body := context.get("body"):
        context["body"] = re.sub(r'href="\.\./book/([\w-]+)\.ipynb', r'href="\1.html', body)


def skip_torch_cells_without_torch(app, docname, source):
    """Without torch, a cell tagged `needs-torch` is not run and shows its stored output."""
    if not app.env.doc2path(docname).endswith(".ipynb") or importlib.util.find_spec("torch"):
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags", [])
        if "needs-torch" in tags:
            cell["metadata"]["tags"] = [*tags, "skip-execution"]
    source[0] = json.dumps(notebook)
