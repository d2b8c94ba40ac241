"""A real client over stdio: open, see diagnostics; type, see them go; ask for fixes and for what an op keeps."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from lsprotocol import types
from pygls.lsp.client import LanguageClient

BAD = "import torch\n\nx = torch.ones(3, requires_grad=True)\ny = x.exp()\ny += 1\ny.sum().backward()\n"


async def _talk(folder: Path) -> None:
    client = LanguageClient("test", "1")
    heard: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def published(params: types.PublishDiagnosticsParams) -> None:
        heard.put_nowait(params)

    async def diagnostics() -> list[types.Diagnostic]:
        return list((await asyncio.wait_for(heard.get(), 60)).diagnostics)

    await client.start_io(sys.executable, "-m", "gradmend", "server")
    try:
        await client.initialize_async(
            types.InitializeParams(capabilities=types.ClientCapabilities(), root_uri=folder.as_uri())
        )
        client.initialized(types.InitializedParams())
        uri = (folder / "train.py").as_uri()
        client.text_document_did_open(
            types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, "python", 1, BAD))
        )
        (one,) = await diagnostics()
        assert (one.code, one.range.start.line, one.severity) == ("GM101", 4, types.DiagnosticSeverity.Error)
        assert [r.location.range.start.line for r in one.related_information or ()] == [3, 5]

        where = types.TextDocumentIdentifier(uri)
        actions = await client.text_document_code_action_async(
            types.CodeActionParams(where, one.range, types.CodeActionContext([one]))
        )
        assert actions
        action = actions[0]
        assert (
            isinstance(action, types.CodeAction)
            and action.edit is not None
            and action.edit.changes is not None
        )
        assert action.edit.changes[uri][0].new_text == "y = y.clone()\n"

        said = await client.text_document_hover_async(types.HoverParams(where, types.Position(3, 7)))
        assert said is not None and isinstance(said.contents, types.MarkupContent)
        assert "**exp** keeps its result" in said.contents.value
        assert await client.text_document_hover_async(types.HoverParams(where, types.Position(1, 0))) is None

        client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(2, uri),
                [types.TextDocumentContentChangeWholeDocument(BAD.replace("y += 1", "y = y + 1"))],
            )
        )
        assert await diagnostics() == []
        client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(3, uri),
                [types.TextDocumentContentChangeWholeDocument("def f(:\n")],
            )
        )
        assert [d.code for d in await diagnostics()] == ["GM000"]
        await _odd(client, folder, diagnostics)
        client.text_document_did_close(types.DidCloseTextDocumentParams(where))
        assert await diagnostics() == []
        await client.shutdown_async(None)
        client.exit(None)
    finally:
        await client.stop()


async def _odd(
    client: LanguageClient, folder: Path, diagnostics: Callable[[], Awaitable[list[types.Diagnostic]]]
) -> None:
    """Fast typing, an emoji before the place, a cell of a notebook, a file that is no Python."""

    def opened(uri: str, text: str, language: str = "python") -> None:
        client.text_document_did_open(
            types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, language, 1, text))
        )

    smile = (folder / "smile.py").as_uri()
    opened(smile, BAD.replace("y += 1", "'\N{GRINNING FACE}'; y += 1"))
    (one,) = await diagnostics()
    # In UTF-16, which clients count in unless they say otherwise, the emoji is two.
    assert (one.range.start.character, one.range.end.character) == (6, 12)

    # Editors and Python end a line at \n, \r\n and \r only.
    for i, odd in enumerate(("\f", "\v", "\x1c", "\x85", "\u2028")):
        fed = (folder / f"fed{i}.py").as_uri()
        opened(fed, f"# {odd}\n" + BAD.replace("y += 1", "y += 1;  '\N{GRINNING FACE}'; y += 2"))
        one = (await diagnostics())[0]
        assert (one.range.start.line, one.range.start.character, one.range.end.character) == (5, 0, 6)
        where = types.TextDocumentIdentifier(fed)
        actions = await client.text_document_code_action_async(
            types.CodeActionParams(where, one.range, types.CodeActionContext([one]))
        )
        assert actions and isinstance(actions[0], types.CodeAction)
        assert actions[0].edit and actions[0].edit.changes
        (edit,) = actions[0].edit.changes[fed]
        assert (edit.range.start.line, edit.range.start.character) == (5, 0)
        said = await client.text_document_hover_async(types.HoverParams(where, types.Position(4, 7)))
        assert said is not None and isinstance(said.contents, types.MarkupContent)
        assert "**exp**" in said.contents.value

    for version in range(2, 40):
        text = BAD if version == 39 else BAD + f"z = {version}\n("
        client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(version, smile),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )
    assert [d.code for d in await diagnostics()] == ["GM101"]  # of the last one alone

    opened("vscode-notebook-cell:/n.ipynb#W0s", "%matplotlib inline\n" + BAD)
    assert [d.range.start.line for d in await diagnostics()] == [5]
    opened("untitled:Untitled-1", BAD)
    assert len(await diagnostics()) == 1
    opened((folder / "x.toml").as_uri(), "[a]\n", "toml")
    tabs = (folder / "tabs.py").as_uri()
    body = "def f(x):\n\ty = x.exp()\n\ty += 1\n\treturn y\n"
    opened(tabs, f"import torch\n{body}f(torch.ones(3, requires_grad=True)).sum().backward()\n")
    (tabbed,) = await diagnostics()
    actions = await client.text_document_code_action_async(
        types.CodeActionParams(
            types.TextDocumentIdentifier(tabs), tabbed.range, types.CodeActionContext([tabbed])
        )
    )
    assert (
        actions and isinstance(actions[0], types.CodeAction) and actions[0].edit and actions[0].edit.changes
    )
    (edits,) = actions[0].edit.changes.values()
    assert edits[0].new_text == "y = y.clone()\n\t"

    # Asked before the pause after typing is over: the fix belongs to the text as it is now.
    where = types.TextDocumentIdentifier(tabs)
    client.text_document_did_change(
        types.DidChangeTextDocumentParams(
            types.VersionedTextDocumentIdentifier(2, tabs),
            [types.TextDocumentContentChangeWholeDocument("# one line more\n" + BAD)],
        )
    )
    whole = types.Range(types.Position(0, 0), types.Position(20, 0))
    actions = await client.text_document_code_action_async(
        types.CodeActionParams(where, whole, types.CodeActionContext([]))
    )
    assert actions and isinstance(actions[0], types.CodeAction)
    assert actions[0].edit and actions[0].edit.changes
    assert [e.range.start.line for e in actions[0].edit.changes[tabs]] == [5]
    gone = types.TextDocumentIdentifier((folder / "gone.py").as_uri())
    assert await client.text_document_hover_async(types.HoverParams(gone, types.Position(0, 0))) is None
    assert not await client.text_document_code_action_async(
        types.CodeActionParams(gone, whole, types.CodeActionContext([]))
    )
    while await diagnostics():
        client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(3, tabs),
                [types.TextDocumentContentChangeWholeDocument("")],
            )
        )


def test_a_session(tmp_path: Path) -> None:
    asyncio.run(_talk(tmp_path))
