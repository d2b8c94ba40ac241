"""`gradmend server`: diagnostics as one types, quick fixes, and what an op keeps on hover. Over stdio, by pygls."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote, urlparse
from urllib.request import url2pathname

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from gradmend import __version__
from gradmend.check import hover, notebooks
from gradmend.check.files import check_file
from gradmend.check.findings import Finding, Place, TextEdit
from gradmend.check.project import look_again
from gradmend.check.rewrite import lines_of
from gradmend.check.run import without_echoes
from gradmend.check.settings import Settings, load
from gradmend.errors import UsageError

_PAUSE = 0.15  # seconds without typing


def serve() -> None:
    make().start_io()


def make() -> LanguageServer:
    # Whole texts: pygls puts an edit into lines that it ends at form feeds too, where editors and Python see none.
    server = LanguageServer("gradmend", __version__, text_document_sync_kind=types.TextDocumentSyncKind.Full)
    found: dict[str, list[Finding]] = {}  # by uri: what quick fixes are taken from
    looked: dict[str, str] = {}  # by uri: the text that they belong to

    def look(uri: str) -> None:
        document = server.workspace.get_text_document(uri)
        if document.language_id not in (None, "", "python"):
            return
        file = path_of(uri)
        try:
            settings = load(file, [], [])
        except UsageError as bad:
            server.window_log_message(types.LogMessageParams(types.MessageType.Error, f"gradmend: {bad}"))
            settings = Settings()
        text = document.source
        if urlparse(uri).scheme == "vscode-notebook-cell":
            text = "\n".join(notebooks.plain(text))
        look_again()
        result = check_file(file, text.encode("utf-8", "replace"))
        mine = [f for f in result.findings if f.told_in((file,)) and settings.wants(f.rule, file)]
        found[uri], looked[uri] = list(without_echoes(mine)), document.source
        server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(
                uri=uri, version=document.version, diagnostics=[_diagnostic(f, document) for f in found[uri]]
            )
        )

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        look(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: types.DidChangeTextDocumentParams) -> None:
        """Once nobody has typed for a moment: what is typed in between is never looked at."""
        uri, version = params.text_document.uri, params.text_document.version
        await asyncio.sleep(_PAUSE)
        if uri in found and server.workspace.get_text_document(uri).version == version:
            look(uri)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: types.DidSaveTextDocumentParams) -> None:
        look(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        found.pop(uri, None)
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri=uri, diagnostics=[]))

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix]),
    )
    def actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        uri = params.text_document.uri
        document = server.workspace.get_text_document(uri)
        if uri in found and looked[uri] != document.source:
            look(uri)  # typed since: edits for the old text would land elsewhere
        made = []
        for finding in found.get(uri, []):
            fix = finding.fix
            if fix is None or not params.range.start.line <= finding.place.line - 1 <= params.range.end.line:
                continue
            made.append(
                types.CodeAction(
                    title=f"{finding.rule}: {fix.message}",
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[_diagnostic(finding, document)],
                    is_preferred=fix.safe,
                    edit=types.WorkspaceEdit(changes={uri: [_edit(e, document) for e in fix.edits]}),
                )
            )
        return made

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hovered(params: types.HoverParams) -> types.Hover | None:
        document = server.workspace.get_text_document(params.text_document.uri)
        try:
            lines = lines_of(document.source)
        except (OSError, ValueError):  # not open, and not there
            return None
        if params.position.line >= len(lines):
            return None
        at = document.position_codec.position_from_client_units(lines, params.position)
        said = hover.about(hover.word_at(lines[at.line], at.character))
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, said)) if said else None

    handlers: tuple[Any, ...] = (opened, changed, saved, closed, actions, hovered)
    assert handlers
    return server


def path_of(uri: str) -> str:
    parts = urlparse(uri)
    return url2pathname(unquote(parts.path)) if parts.scheme == "file" else uri


def _diagnostic(finding: Finding, document: TextDocument) -> types.Diagnostic:
    error = finding.severity == "error"
    return types.Diagnostic(
        range=_range(finding.place, document),
        severity=types.DiagnosticSeverity.Error if error else types.DiagnosticSeverity.Warning,
        code=finding.rule,
        source="gradmend",
        message=finding.message + (f"\nhelp: {finding.help}" if finding.help else ""),
        related_information=[
            types.DiagnosticRelatedInformation(types.Location(document.uri, _range(p, document)), m)
            for m, p in finding.related
            if p.file == finding.place.file
        ],
    )


def _range(place: Place | TextEdit, document: TextDocument) -> types.Range:
    """In the client's units: by default UTF-16, where an emoji counts twice."""
    start = types.Position(place.line - 1, place.column - 1)
    end = types.Position(place.end_line - 1, place.end_column - 1)
    return document.position_codec.range_to_client_units(lines_of(document.source), types.Range(start, end))


def _edit(edit: TextEdit, document: TextDocument) -> types.TextEdit:
    return types.TextEdit(_range(edit, document), edit.text)
