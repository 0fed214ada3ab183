"""The guides' examples, run in order, as a reader would type them in the root of a clone."""

import re

import pytest
from conftest import REPOSITORY

GUIDES = {"docs/python.md": 10, "docs/simulator.md": 1}


@pytest.mark.parametrize("guide", GUIDES)
def test_the_examples_run(agent, directory, guide, monkeypatch):
    for name in ("pandas", "pyarrow", "dask", "numpy"):
        pytest.importorskip(name)
    monkeypatch.chdir(REPOSITORY)
    text = (REPOSITORY / guide).read_text()
    # An example that cannot run here says so, as commands do.
    blocks = re.finditer(r"(<!-- not run: [^\n]+ -->\n+)?```python\n(.*?)```", text, re.S)
    examples = [(text.count("\n", 0, m.start(2)) + 1, m[2]) for m in blocks if not m[1]]
    assert len(examples) >= GUIDES[guide], "the guide has lost its examples"
    names = {"DATA": str(directory)}
    for line, code in examples:
        # Line numbers of an error are those of the guide.
        exec(compile("\n" * (line - 1) + code, str(REPOSITORY / guide), "exec"), names)
