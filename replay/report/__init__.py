"""One HTML page about one or more recorded runs: did lending pay, what did every device do, how did training go.

    entries ─▶ Timeline (what happened when) ─┬─ charts  ─▶ JSON in the page ─▶ chart scripts (SVG, zoom, values under the pointer)
                                              └─ numbers, tables ───────────▶ page.html.j2: words and tables, there without a script

The page fetches nothing: styles, scripts and data are in it. Its size does not grow with the run: see `replay.report.thinning`.
"""
