"""A real client over stdio: open, see diagnostics; type, see them go; ask for fixes and for what an op keeps."""

from __future__ import annotations

import asyncio
import sys
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
        client.text_document_did_close(types.DidCloseTextDocumentParams(where))
        assert await diagnostics() == []
        await client.shutdown_async(None)
        client.exit(None)
    finally:
        await client.stop()


def test_a_session(tmp_path: Path) -> None:
    asyncio.run(_talk(tmp_path))
