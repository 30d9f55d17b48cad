"""Checks the generated tables of docs/metrics.md: every series, and the names of vLLM and SGLang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ebbtide.server.metrics.compat_names import ENGINE_ALIASES, MetricAliases
from ebbtide.server.metrics.help_texts import GAUGE_TEXTS, HISTOGRAM_TEXTS, LABELS, PREFIX, TOTAL_TEXTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "metrics.md"
KINDS = (("gauge", GAUGE_TEXTS), ("counter", TOTAL_TEXTS), ("histogram", HISTOGRAM_TEXTS))


def metrics_table() -> str:
    """The table of all series."""
    lines = ["| name | type | labels | |", "|---|---|---|---|"]
    for kind, texts in KINDS:
        for name, text in texts.items():
            labels = ", ".join(f"`{label}`" for label in LABELS.get(name, ()))
            lines.append(f"| `{PREFIX}{name}` | {kind} | {labels} | {text} |")
    return "\n".join(lines)


def compat_table() -> str:
    """The table of the names of vLLM and SGLang."""
    lines = ["| vLLM or SGLang | type | ebbtide |", "|---|---|---|"]
    lines += [row for aliases in ENGINE_ALIASES.values() for row in dict.fromkeys(_rows(aliases))]
    return "\n".join(lines)


def _rows(aliases: MetricAliases) -> Iterator[str]:
    for kind, entries in (("gauge", aliases.gauges), ("counter", aliases.totals)):
        for alias in entries:
            ours = " + ".join(f"`{key}`" for key in alias.ours) + "".join(f" − `{key}`" for key in alias.minus)
            yield f"| `{_shown(aliases, alias.name, alias.labels)}` | {kind} | {ours} |"
    for histogram in aliases.histograms:
        yield f"| `{_shown(aliases, histogram.name, histogram.labels)}` | histogram | `{histogram.ours}` |"
    if aliases.includes_http:
        counts = [(name, kind) for kind, texts in KINDS for name in texts if name.startswith("http_re")]
        yield from (f"| `{aliases.prefix}{name}` | {kind} | `{name}` |" for name, kind in counts)
    if aliases.cache_info is not None:
        yield f"| `{aliases.prefix}{aliases.cache_info}` | gauge | `page_size`, `max_total_num_tokens` as labels |"


def _shown(aliases: MetricAliases, name: str, labels: tuple[tuple[str, str], ...]) -> str:
    chosen = ",".join(f"{key}={value}" for key, value in labels)
    return f"{aliases.prefix}{name}" + (f"{{{chosen}}}" if chosen else "")


def part(page: str, name: str) -> tuple[int, int]:
    """Start and end of the generated part ``name``."""
    return page.index("-->", page.index(f"<!-- {name}: ")) + len("-->\n"), page.index(f"<!-- /{name} -->")


def test_the_table_has_every_series_and_its_sentence() -> None:
    page = PAGE.read_text()
    start, end = part(page, "metrics")
    assert page[start:end].strip() == metrics_table()


def test_the_table_has_every_name_of_other_engines() -> None:
    page = PAGE.read_text()
    start, end = part(page, "compat")
    assert page[start:end].strip() == compat_table()


def test_labels_belong_to_existing_series() -> None:
    assert set(LABELS) <= {name for _, texts in KINDS for name in texts}


if __name__ == "__main__":  # writes the tables after a series has changed: python -m tests.test_metrics_page
    text = PAGE.read_text()
    for name, table in (("compat", compat_table()), ("metrics", metrics_table())):
        start, end = part(text, name)
        text = f"{text[:start]}{table}\n{text[end:]}"
    PAGE.write_text(text)
