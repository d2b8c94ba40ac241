"""The look of the HTML report: one sheet, two colour schemes, readable on paper too."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --dim: #60646c; --paper: #fcfcfd; --card: #fff; --line: #d9d9e0;
  --bad: #c62a2f; --bad-bg: #ffefef; --good: #18794e; --good-bg: #e9f9ee; --cool: #0b68cb; --cool-bg: #edf6ff; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --dim: #9ba1a6; --paper: #111113; --card: #18191b;
  --line: #36393f; --bad: #ff9592; --bad-bg: #3b1219; --good: #3dd68c; --good-bg: #132d21; --cool: #70b8ff; --cool-bg: #0d2847; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0; font-size: 2rem; } h1::first-letter { text-transform: uppercase; } h1.clean, h1.healed { color: var(--good); } h1.conflict, h1.failed { color: var(--bad); }
h2 { margin: 0 0 .25rem; font-size: 1.15rem; } h3 { margin: 1rem 0 .3rem; font-size: .95rem; }
.mark { margin: 0; color: var(--dim); letter-spacing: .08em; text-transform: uppercase; font-size: .8rem; }
small, .facts, details { color: var(--dim); font-weight: normal; } small { font-size: .85em; }
code, pre, small { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
code { font-size: .92em; } h2 > code:first-child, nav a > code:first-child { color: var(--bad); }
a { color: inherit; text-decoration-color: var(--line); text-underline-offset: .2em; } a:hover { text-decoration-color: inherit; }
:focus-visible { outline: 2px solid var(--cool); outline-offset: 2px; border-radius: 3px; } summary { cursor: pointer; }
nav ol { padding-left: 1.4rem; } nav li { margin: .25rem 0; }
article { margin: 1.25rem 0; padding: 1rem 1.25rem; background: var(--card); border: 1px solid var(--line);
  border-left: 4px solid var(--bad); border-radius: 6px; }
article.refused-but-right { border-left-color: var(--cool); } article.refused-but-right h2 > code:first-child { color: var(--cool); }
pre { margin: .3rem 0; padding: .5rem 0; overflow-x: auto; background: var(--paper); border: 1px solid var(--line);
  border-radius: 4px; font-size: .85rem; line-height: 1.45; }
pre > *, .note pre, .help pre, article.crash pre { padding-left: .75rem; padding-right: .75rem; }
article.crash pre { white-space: pre-wrap; } .told { white-space: pre-line; }
pre span, pre mark, pre ins, pre del { display: inline-block; min-width: 100%; color: inherit; background: none;
  text-decoration: none; }
pre i { display: inline-block; width: 4ch; margin-right: 2ch; text-align: right; color: var(--dim); font-style: normal;
  user-select: none; }
.place mark { background: var(--cool-bg); } .place.primary mark { background: var(--bad-bg); }
.place.primary h3 { color: var(--bad); }
pre span.head { color: var(--dim); } pre ins { background: var(--good-bg); color: var(--good); } pre del { background: var(--bad-bg); color: var(--bad); }
.fix.proven h3 small { color: var(--good); } .note, .help { margin: .6rem 0; }
.note > b, .help > b { margin-right: .4rem; } .help > b { color: var(--good); } .note > b { color: var(--cool); }
details { margin: .4rem 0; font-size: .85rem; } li.torch, li.library { color: var(--dim); } li.user { color: var(--ink); }
details h3 { margin-bottom: 0; } details ol { margin: .3rem 0; padding-left: 2rem; }
table { border-collapse: collapse; } th { text-align: left; padding-right: 1.5rem; font-weight: normal; }
@media (max-width: 36rem) { body { padding: 1rem .6rem 3rem; } article { padding: .75rem .8rem; } h2 { font-size: 1.05rem; }
  h3 small { display: block; } pre i { width: 3ch; margin-right: 1ch; } }
@media print { article { break-inside: avoid; } pre { white-space: pre-wrap; } }
"""
