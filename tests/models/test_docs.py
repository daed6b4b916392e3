"""The code in docs/add-a-model.md is the code in the repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_snippets_are_real_code() -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "add-a-model.md").read_text(), re.DOTALL)
    sources = [(ROOT / "motet" / "models" / name).read_text() for name in ("olmo2.py", "registry.py")]
    code = "\n".join(line.strip() for source in sources for line in source.splitlines() if line.strip())
    # Comments at the ends of lines are left out on the page.
    code = re.sub(r"  # .*", "", code)
    assert len(snippets) >= 4
    for snippet in snippets:
        lines = "\n".join(line.strip() for line in snippet.splitlines() if line.strip())
        assert lines in code
