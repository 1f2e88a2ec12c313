"""Files that name the release agree."""

import re

import engine
from tests.mpi import REPO


def test_citation_and_changes_name_this_version():
    cited = re.search(r"^version: (.+)$", (REPO / "CITATION.cff").read_text(), re.MULTILINE)[1]
    newest = re.search(r"^## ([\d.]+)", (REPO / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert {cited, newest} == {engine.__version__}


def test_the_paper_is_cited():
    text = (REPO / "CITATION.cff").read_text()
    assert "1711.04291" in text
    assert re.findall(r"family-names: (\w+)", text) == ["Codreanu", "Podareanu", "Saletore"]
