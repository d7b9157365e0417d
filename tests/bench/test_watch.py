import json
import shutil

import pytest

from freerun.bench.watch import bench_watch

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
if not (shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")):
    pytest.skip("needs Chromium: apt-get install chromium", allow_module_level=True)


def test_a_browser_is_timed_and_finds_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    bench_watch(samples=2000, steps=50, repeats=1)
    printed = capsys.readouterr().out
    assert "a rare string: 1 sample found" in printed
    assert "a string that is nowhere: 0 samples found" in printed
    measured = json.loads(printed.splitlines()[-1])
    assert (measured["samples"], measured["steps"]) == (2000, 50)
    assert 0 < measured["first_paint_s"] < 30
    assert 0 < measured["filter_s"] <= measured["worst_filter_s"] < 30
