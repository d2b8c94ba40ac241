"""What a rule is: one cause of a broken gradient, with its words and its proof.

The snippets are the rule's tests and its documentation: `bad` fails under plain PyTorch as `raises` says, or
runs and gives another gradient than `right`; `good` runs, and gives `right`.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill, indent


@dataclass(frozen=True)
class Rule:
    """All there is to know of one cause.

    `what`, `why` and `fix` are prose: paragraphs parted by an empty line. `gradient` and `right` are Python
    expressions over the names that the snippets define, for example "x.grad" and "2 * x". A rule whose
    programs never reach a gradient (an error in forward, say) leaves `right` empty. `needs` names the modules
    beyond torch and numpy that the snippets import. `static` ones are told by `gradmend check` alone: nothing is wrong with
    the backward itself, only with what the program takes its result for.
    """

    code: str
    name: str
    summary: str
    what: str
    why: str
    bad: str
    good: str
    fix: str
    raises: str = ""  # a regular expression found in PyTorch's own message; empty: `bad` runs and is wrong
    gradient: str = "x.grad"
    right: str = ""
    needs: tuple[str, ...] = ()
    static: bool = False

    @property
    def silent(self) -> bool:
        """Plain PyTorch says nothing and goes on with a wrong gradient."""
        return self.code.startswith("GM2")

    @property
    def sections(self) -> tuple[tuple[str, str, bool], ...]:
        """The five headings, each with its text and whether that text is code."""
        return (
            ("What it does", self.what, False),
            ("Why is this bad", self.why, False),
            ("Example", self.bad, True),
            ("Use instead", self.good, True),
            ("Fix safety", self.fix, False),
        )

    def as_text(self, width: int = 88) -> str:
        """The rule for a terminal: `gradmend explain GM101`."""
        parts = [f"{self.code} {self.name}", fill(self.summary, width)]
        for heading, body, is_code in self.sections:
            text = indent(body.strip("\n"), "    ") if is_code else _wrap(body, width)
            parts.append(f"{heading}\n{text}")
        return "\n\n".join(parts) + "\n"

    def as_markdown(self) -> str:
        """The rule's page in docs/rules."""
        parts = [f"# {self.code} {self.name}", self.summary]
        for heading, body, is_code in self.sections:
            text = f"```python\n{body.strip(chr(10))}\n```" if is_code else _wrap(body, 110, margin="")
            parts.append(f"## {heading}\n\n{text}")
        return "\n\n".join(parts) + "\n"


def _wrap(prose: str, width: int, margin: str = "  ") -> str:
    paragraphs = [" ".join(p.split()) for p in prose.strip().split("\n\n")]
    return "\n\n".join(
        fill(
            p,
            width,
            initial_indent=margin,
            subsequent_indent=margin,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for p in paragraphs
    )
