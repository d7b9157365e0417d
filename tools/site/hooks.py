"""What MkDocs calls while it builds the site: pages that are made from the code, from the examples and from the
changelog; links that work in the repository and on the site; formulas.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools.site.formulas import with_formulas
from tools.site.reference import pages

ROOT = Path(__file__).parents[2]
_SHOWN = (".md", ".py", ".yaml", ".sh", ".sbatch")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are no files below docs/, and the examples' own files for their pages to link to."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "changelog.md", content=(ROOT / "CHANGELOG.md").read_text()))
    for example in sorted((ROOT / "examples").rglob("*")):
        if example.is_file() and example.suffix in _SHOWN and "__pycache__" not in example.parts:
            files.append(File.generated(config, str(example.relative_to(ROOT)), content=example.read_text()))
    return files


def on_config(config: Any) -> Any:
    """List the examples and the decisions in the navigation."""
    for entry in config["nav"]:
        if "Examples" in entry:
            entry["Examples"] += [f"examples/{readme.parent.name}/README.md" for readme in _readmes()]
        if "Decisions" in entry:
            notes = sorted((ROOT / "docs" / "decisions").glob("*.md"), reverse=True)
            entry["Decisions"] = [f"decisions/{note.name}" for note in notes]
    return config


def _readmes() -> list[Path]:
    return sorted((ROOT / "examples").glob("*/README.md"))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links are written as they work in the repository, where docs/ and examples/ lie side by side."""
    source = page.file.src_uri
    if source.startswith("examples/"):
        markdown = re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", markdown)
        return re.sub(r"\]\(((?:\.\./)*\w+)/\)", _folder_link, markdown)
    markdown = re.sub(r"\]\(((?:\.\./)*)\.\./examples/", r"](\1examples/", markdown)
    return re.sub(r"\]\(((?:\.\./)*examples(?:/\w+)?)/\)", _folder_link, markdown)


def _folder_link(found: re.Match[str]) -> str:
    """A folder is its page; one without a page is named only."""
    folder = found[1].rsplit("/", 1)[-1]
    has_page = folder == "examples" or (ROOT / "examples" / folder / "README.md").exists()
    return f"]({found[1]}/README.md)" if has_page else "](../cluster.md)"


def on_page_content(html: str, **_: Any) -> str:
    return with_formulas(html)
