"""The site is built without a warning, is read without network, and its reference has all that the code has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from freerun.cli.main import app
from freerun.config.load import knobs
from freerun.core.metrics import METRICS
from tests.docs.pages import ROOT

pytest.importorskip("material", reason="needs MkDocs Material: pip install 'freerun[docs]'")
from tools.site import reference
from tools.site.formulas import with_formulas


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it: a link that leads nowhere, or a page that the navigation forgot, fails it."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loads = re.compile(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="?(https?:[^" >]+)')
    found = {url for page in site.rglob("*.html") for url in loads.findall(page.read_text())}
    assert not found


def test_formulas_are_drawn(site: Path) -> None:
    page = (site / "objectives.html").read_text()
    assert page.count("<math") > 30
    assert "arithmatex" not in page


def test_a_formula_becomes_mathml() -> None:
    drawn = with_formulas('<p>so <span class="arithmatex">\\(u_t &lt; 1\\)</span></p>')
    assert drawn.startswith("<p>so <math")
    assert "<msub>" in drawn


def test_the_search_index_has_every_knob(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text()
    assert all(key.split("[")[0] in index for key, _, _ in knobs())


def test_every_knob_has_its_type_and_limits() -> None:
    page = reference.knobs_page()
    for key, _, _ in knobs():
        assert page.count(f"**`{key}`**") == 1, key
    assert "**`train.clip.low`**{ #train-clip-low } · *number* · default `0.2` · `> 0`, `≤ 1`" in page
    assert "*one of `wait`, `mask`, `drop`* · default `wait`" in page


def test_every_command_has_its_options() -> None:
    page = reference.commands_page()
    top = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for command in top:
        assert f" freerun {command} {{" in page
    assert "| `--dry-run` |" in page
    assert "### freerun bench async" in page


def test_every_metric_says_what_is_healthy() -> None:
    page = reference.metrics_page()
    for name, metric in METRICS.items():
        assert f"`{name}`" in page
        assert metric.title in page


def test_every_file_of_a_run_is_explained() -> None:
    for path, says in reference.folder_files():
        assert says, f"RunFolder: what {path} holds is not said; give the property a docstring"
