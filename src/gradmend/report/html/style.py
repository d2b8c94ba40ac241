"""The look of the HTML report: one sheet below one class, so that it touches nothing else of a notebook's page."""

STYLE = """
.gradmend { color-scheme: light dark; --ink: #1c2024; --dim: #565b63; --paper: #fcfcfd; --card: #fff; --line: #d9d9e0;
  --bad: #b3261e; --bad-bg: #ffe9e7; --good: #146c43; --good-bg: #e6f7ed; --cool: #0b5cb5; --cool-bg: #e6f1ff;
  --late: #6b3fa0; --late-bg: #f3ebff;
  @media (prefers-color-scheme: dark) { --ink: #edeef0; --dim: #a3a8af; --paper: #111113; --card: #18191b;
    --line: #3a3d44; --bad: #ff9d96; --bad-bg: #431a1c; --good: #4cd695; --good-bg: #12301f; --cool: #7cbcff;
    --cool-bg: #0e2a4a; --late: #cfa9ff; --late-bg: #2d1c47; }
  background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere;
  * { box-sizing: border-box; }
  h1 { margin: .2rem 0 .4rem; font-size: 1.6rem; line-height: 1.3; &::first-letter { text-transform: uppercase; } } header > p { margin: .3rem 0; }
  h2 { margin: 0 0 .25rem; font-size: 1.15rem; line-height: 1.35; } h3 { margin: 1rem 0 .3rem; font-size: .95rem; }
  .brand { margin: 0; color: var(--dim); letter-spacing: .08em; text-transform: uppercase; font-size: .8rem;
    b { padding: .1rem .5rem; border-radius: 3px; } b:is(.clean, .healed, .proven) { color: var(--good); background: var(--good-bg); } b:is(.conflict, .failed) { color: var(--bad); background: var(--bad-bg); } }
  small, .facts, details, footer { color: var(--dim); font-weight: normal; } small { font-size: .85em; }
  code, pre, small { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
  code { font-size: .92em; background: none; padding: 0; color: inherit; } h2 > code:first-child, nav a > code:first-child { color: var(--bad); }
  a { color: inherit; text-decoration-color: var(--line); text-underline-offset: .2em; } a:hover { text-decoration-color: inherit; }
  :focus-visible { outline: 2px solid var(--cool); outline-offset: 2px; border-radius: 3px; } summary { cursor: pointer; }
  nav ol { padding-left: 1.4rem; } nav li { margin: .25rem 0; }
  nav em { padding: 0 .4em; border-radius: 3px; background: var(--bad-bg); color: var(--bad); font-style: normal; font-size: .85em; }
  article { margin: 1.25rem 0; padding: 1rem 1.25rem; background: var(--card); border: 1px solid var(--line);
    border-left: 4px solid var(--bad); border-radius: 6px; }
  article.refused-but-right { border-left-color: var(--cool); h2 > code:first-child { color: var(--cool); } }
  .facts { margin: 0 0 .6rem; }
  pre { margin: .4rem 0; padding: .5rem 0; overflow-x: auto; background: var(--paper); color: var(--ink); border: 1px solid var(--line);
    border-radius: 4px; font-size: .85rem; line-height: 1.45; white-space: pre; }
  pre > *, .note pre, .help pre, article.crash pre { padding-left: .75rem; padding-right: .75rem; }
  article.crash pre { white-space: pre-wrap; padding: .5rem .75rem; } .told { white-space: pre-line; }
  pre :is(span, mark, ins, del) { display: inline-block; min-width: 100%; color: inherit; background: none; text-decoration: none; }
  pre i { display: inline-block; width: 4ch; margin-right: 2ch; text-align: right; color: var(--dim); font-style: normal; user-select: none; }
  pre .gap { color: var(--dim); padding-left: 5ch; } .file { margin: .6rem 0 0; color: var(--dim); font-size: .85rem; }
  .steps { list-style: none; margin: .4rem 0; padding: 0; li { display: flex; gap: .5rem; margin: .15rem 0; } }
  :is(.steps, .source) b { flex: none; display: inline-block; min-width: 1.5em; padding: 0 .35em; border-radius: .8em; text-align: center;
    font-size: .8rem; line-height: 1.5; font-family: system-ui, sans-serif; height: 1.5em; align-self: start; margin-top: .15rem; }
  .source b { margin-left: .6ch; margin-top: 0; }
  .save > b, b.save { background: var(--cool); color: var(--card); } .write > b, b.write, .look > b, b.look { background: var(--bad); color: var(--card); }
  .read > b, b.read { background: var(--late); color: var(--card); }
  pre mark.save { background: var(--cool-bg); } pre mark:is(.write, .look) { background: var(--bad-bg); } pre mark.read { background: var(--late-bg); }
  pre span.head { color: var(--dim); } pre ins { background: var(--good-bg); color: var(--good); } pre del { background: var(--bad-bg); color: var(--bad); }
  .fix.proven { margin: .8rem 0; padding: .1rem .9rem .4rem; border: 1px solid var(--good); border-radius: 6px; h3 small { color: var(--good); font-weight: bold; } }
  .note, .help { margin: .6rem 0; > b { margin-right: .4rem; } } .help > b { color: var(--good); } .note > b { color: var(--cool); }
  details { margin: .4rem 0; font-size: .85rem; ol { margin: .3rem 0; padding-left: 2rem; } } li:is(.torch, .library) { color: var(--dim); } li.user { color: var(--ink); }
  figure { margin: 1rem 0; padding: .7rem .9rem .9rem; border: 1px solid var(--line); border-radius: 6px; background: var(--paper); }
  figcaption { font-weight: 600; font-size: .95rem; } .sub { margin: .7rem 0 .2rem; color: var(--dim); font-size: .85rem; }
  .legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .3rem 0; font-size: .85rem; color: var(--dim);
    span::before { content: ""; display: inline-block; width: .7em; height: .7em; margin-right: .4em; border-radius: 50%; background: currentColor; }
    .save::before { color: var(--cool); } .write::before { color: var(--bad); border-radius: 1px; } .read::before { color: var(--late); transform: rotate(45deg) scale(.9); border-radius: 1px; }
    .changed::before { background: var(--bad); border-radius: 1px; height: .35em; } }
  .lane { display: grid; grid-template-columns: minmax(9rem, 30%) 1fr; column-gap: 1rem; align-items: center; padding: .45rem 0 .2rem; border-top: 1px solid var(--line);
    > p { margin: 0; grid-row: 1 / 3; line-height: 1.3; } }
  .strip { position: relative; height: 6px; border-radius: 3px; background: var(--line); overflow: hidden;
    span { position: absolute; top: 0; bottom: 0; } .held { background: var(--cool); opacity: .45; } .changed { background: var(--bad); } }
  .track { display: grid; position: relative; height: 26px; align-items: center; margin-right: 14px;
    background: linear-gradient(var(--line), var(--line)) center / 100% 1px no-repeat; }
  .dot { grid-area: 1 / 1; width: 14px; height: 14px; margin-left: calc(var(--at) * 100%); border-radius: 50%; border: 2px solid var(--paper); cursor: help;
    &.save { background: var(--cool); } &:is(.write, .look) { background: var(--bad); border-radius: 3px; } &.read { background: var(--late); transform: rotate(45deg); border-radius: 3px; }
    &.other { width: 10px; height: 10px; margin-left: calc(var(--at) * 100% + 2px); opacity: .55; }
    &:is(:hover, :focus, :focus-visible) { opacity: 1; z-index: 2; } }
  .dot.read { transform: none; clip-path: polygon(50% 0, 100% 50%, 50% 100%, 0 50%); border: 0; }
  .dot.read:is(:hover, :focus) { clip-path: none; }
  .tip { display: none; position: absolute; left: 0; right: -14px; top: 24px; z-index: 3; padding: .35rem .6rem; border-radius: 4px; background: var(--ink); color: var(--paper);
    font-size: .82rem; line-height: 1.4; pointer-events: none; } .dot:is(:hover, :focus) > .tip { display: block; }
  .chain { list-style: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem; font-size: .85rem;
    li { padding: .1rem .5rem; border: 1px solid var(--line); border-radius: 4px; } li + li::before { content: "→ "; color: var(--dim); } }
  .graph { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; figcaption { flex: 1 0 100%; } ul { list-style: none; margin: 0; padding: 0; }
    .level { flex: 1 1 9rem; min-width: 0; } li { margin: .25rem 0; padding: .25rem .5rem; border: 1px solid var(--line); border-radius: 4px; font-size: .85rem; small { display: block; } }
    .here li { border-color: var(--bad); background: var(--bad-bg); } }
  table { border-collapse: collapse; font-size: .85rem; } th { text-align: left; vertical-align: top; padding-right: 1.5rem; font-weight: normal; white-space: nowrap; overflow-wrap: normal; }
  footer { margin-top: 2rem; }
  &.part { padding: .2rem .6rem; font-size: 14px; article { margin: .4rem 0; } }
  @media (max-width: 36rem) { article { padding: .75rem .8rem; } h2 { font-size: 1.05rem; } pre i { width: 3ch; margin-right: 1ch; }
    .steps small { display: block; } figure { padding: .6rem; } .lane { grid-template-columns: 1fr; > p { grid-row: auto; margin-bottom: .25rem; } } th { padding-right: .8rem; } }
  @media print { --paper: #fff; --card: #fff; --ink: #000; article, figure, .fix { break-inside: avoid; } pre { white-space: pre-wrap; } details[open], details { display: block; } }
}
body.gradmend { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; }
@media (max-width: 36rem) { body.gradmend { padding: 1rem .6rem 3rem; } }
"""
