"""`gradmend server`: diagnostics as one types, quick fixes, and what an op keeps on hover. Over stdio, by pygls."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlparse
from urllib.request import url2pathname

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from gradmend import __version__
from gradmend.check import hover
from gradmend.check.files import check_file
from gradmend.check.findings import Finding, Place, TextEdit
from gradmend.check.settings import Settings, load
from gradmend.errors import UsageError


def serve() -> None:
    make().start_io()


def make() -> LanguageServer:
    server = LanguageServer("gradmend", __version__)
    found: dict[str, list[Finding]] = {}  # by uri: what quick fixes are taken from

    def look(uri: str) -> None:
        document = server.workspace.get_text_document(uri)
        file = path_of(uri)
        try:
            settings = load(file, [], [])
        except UsageError as bad:
            server.window_log_message(types.LogMessageParams(types.MessageType.Error, f"gradmend: {bad}"))
            settings = Settings()
        result = check_file(file, document.source.encode("utf-8", "surrogatepass"))
        found[uri] = [f for f in result.findings if f.place.file == file and settings.wants(f.rule, file)]
        server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(
                uri=uri, version=document.version, diagnostics=[_diagnostic(f, uri) for f in found[uri]]
            )
        )

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        look(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        look(params.text_document.uri)

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
        made = []
        for finding in found.get(uri, []):
            fix = finding.fix
            if fix is None or not params.range.start.line <= finding.place.line - 1 <= params.range.end.line:
                continue
            made.append(
                types.CodeAction(
                    title=f"{finding.rule}: {fix.message}",
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[_diagnostic(finding, uri)],
                    is_preferred=fix.safe,
                    edit=types.WorkspaceEdit(changes={uri: [_edit(e) for e in fix.edits]}),
                )
            )
        return made

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hovered(params: types.HoverParams) -> types.Hover | None:
        document = server.workspace.get_text_document(params.text_document.uri)
        if params.position.line >= len(document.lines):
            return None
        said = hover.about(hover.word_at(document.lines[params.position.line], params.position.character))
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, said)) if said else None

    handlers: tuple[Any, ...] = (opened, changed, saved, closed, actions, hovered)
    assert handlers
    return server


def path_of(uri: str) -> str:
    parts = urlparse(uri)
    return url2pathname(unquote(parts.path)) if parts.scheme == "file" else uri


def _diagnostic(finding: Finding, uri: str) -> types.Diagnostic:
    error = finding.severity == "error"
    return types.Diagnostic(
        range=_range(finding.place),
        severity=types.DiagnosticSeverity.Error if error else types.DiagnosticSeverity.Warning,
        code=finding.rule,
        source="gradmend",
        message=finding.message + (f"\nhelp: {finding.help}" if finding.help else ""),
        related_information=[
            types.DiagnosticRelatedInformation(types.Location(uri, _range(p)), m)
            for m, p in finding.related
            if p.file == finding.place.file
        ],
    )


def _range(place: Place) -> types.Range:
    return types.Range(
        types.Position(place.line - 1, place.column - 1),
        types.Position(place.end_line - 1, place.end_column - 1),
    )


def _edit(edit: TextEdit) -> types.TextEdit:
    return types.TextEdit(
        types.Range(
            types.Position(edit.line - 1, edit.column - 1),
            types.Position(edit.end_line - 1, edit.end_column - 1),
        ),
        edit.text,
    )
