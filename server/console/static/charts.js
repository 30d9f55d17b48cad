// The charts of the last minutes.

import { h } from "./dom.js";
import { count, duration, percent, rate } from "./format.js";
import { color, holderColor } from "./holders.js";

const HEIGHT = 150;
// Each entry is painted over the entry before it, so that the areas appear stacked.
const STACK = [
  { key: "quarantined", label: "Quarantined" },
  { key: "evictable", label: "Evictable" },
  { key: "session_held", label: "Session-held" },
  { key: "uncached", label: "Uncached" },
  { key: "protected", label: "Protected" },
];

const line = (label, name, dash) => ({ label, name, dash });

const CHARTS = [
  { key: "pool", title: "Pool use", unit: "of the first pool", value: percent, scale: () => [0, 1], stacked: true,
    series: STACK.map(({ key, label }) => ({ label, name: `pool_${key}`, holder: key })) },
  { key: "tokens", title: "Tokens per second", value: rate, series: [line("Output", "output"), line("Prompt", "prompt", [5, 3])] },
  { key: "requests", title: "Requests", value: count, whole: true,
    series: [line("Running", "running"), line("Waiting", "waiting", [5, 3]), line("Retracted", "retracted", [2, 2])] },
  { key: "latency", title: "Latency", value: duration, log: true,
    series: [line("First token, median", "ttft_p50"), line("First token, 95 %", "ttft_p95", [5, 3]), line("Inter-token, median", "itl_p50"), line("Inter-token, 95 %", "itl_p95", [5, 3])],
    colors: ["series-1", "series-1", "series-2", "series-2"] },
];

// Returns the figures of a snapshot that the charts show.
export function figuresOf(snapshot) {
  const books = Object.values(snapshot.load.pools)[0];
  const total = Math.max(books.total + (books.quarantined ?? 0), 1);
  const figures = { running: snapshot.load.num_running_reqs, waiting: snapshot.load.num_queue_reqs, retracted: snapshot.load.num_retracted_reqs };
  let sum = 0;
  for (const { key } of [...STACK].reverse()) {
    sum += books[key] ?? 0;
    figures[`pool_${key}`] = sum / total;
  }
  const second = snapshot.latency?.second;
  if (second?.first_token) Object.assign(figures, { ttft_p50: second.first_token.p50_s, ttft_p95: second.first_token.p95_s });
  if (second?.token_gap) Object.assign(figures, { itl_p50: second.token_gap.p50_s, itl_p95: second.token_gap.p95_s });
  return figures;
}

export class Charts {
  constructor(parent) {
    this.charts = CHARTS.map((chart) => {
      const plot = h("div", { class: "plot", role: "img", "aria-label": chart.title });
      const legend = h("figcaption", {}, h("b", {}, chart.title), chart.unit ? h("span", { class: "hint" }, ` ${chart.unit}`) : null);
      const keys = h("ul", { class: "keys" });
      parent.append(h("figure", { class: "chart", "data-chart": chart.key }, legend, plot, keys));
      return { chart, plot, keys, uplot: null };
    });
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(parent);
  }

  resize() {
    for (const { uplot, plot } of this.charts) {
      if (uplot && plot.clientWidth) uplot.setSize({ width: plot.clientWidth, height: HEIGHT });
    }
  }

  // Draw again with the colors of another theme.
  restyle() {
    for (const entry of this.charts) {
      entry.uplot?.destroy();
      entry.uplot = null;
      entry.keys.replaceChildren();
    }
  }

  show(history, seconds) {
    for (const entry of this.charts) {
      if (!entry.plot.clientWidth) continue; // in a hidden view
      entry.uplot ??= this.create(entry);
      const data = history.last(seconds, entry.chart.series.map(({ name }) => name));
      entry.end = data[0].at(-1) ?? 0;
      entry.seconds = seconds;
      entry.uplot.setData(data.map((column, index) => (index && column.length === 0 ? data[0].map(() => null) : column)));
      this.label(entry, data);
    }
  }

  label({ chart, plot, keys }, data) {
    const words = chart.series.map(({ label }, index) => {
      const value = data[index + 1].findLast((entry) => entry !== null && entry !== undefined);
      const below = chart.stacked && index + 2 < data.length ? (data[index + 2].at(-1) ?? 0) : 0;
      const text = value === undefined ? "–" : chart.value(Math.max(value - below, 0));
      const shown = keys.children[index].lastElementChild;
      if (shown.textContent !== text) shown.textContent = text;
      return `${label} ${text}`;
    });
    plot.setAttribute("aria-label", `${chart.title}: ${words.join(", ")}`);
  }

  create(entry) {
    const { chart, plot, keys } = entry;
    const axis = { stroke: color("muted"), font: "11px system-ui, sans-serif", grid: { stroke: color("grid"), width: 1 }, ticks: { show: false } };
    const series = chart.series.map(({ label, dash, holder }, index) => {
      const stroke = holder ? holderColor(holder) : color(chart.colors?.[index] ?? `series-${index + 1}`);
      const key = h("span", { class: "key", "aria-hidden": "true" });
      key.style.borderTop = `3px ${dash ? (dash[0] > 2 ? "dashed" : "dotted") : "solid"} ${stroke}`;
      keys.append(h("li", {}, key, h("span", {}, label), h("b", { class: "num" }, "–")));
      const spans = chart.log === true;
      return { label, stroke, width: holder ? 0 : 1.6, dash, fill: holder ? stroke : undefined, points: { show: false }, spanGaps: spans };
    });
    return new window.uPlot({
      width: plot.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      padding: [8, 8, 0, 0],
      series: [{}, ...series],
      scales: {
        x: { range: () => [entry.end - entry.seconds, entry.end] },
        y: chart.log
          ? { distr: 3, range: (_, low, high) => [10 ** Math.floor(Math.log10(Math.max(low ?? 0.001, 1e-5))), 10 ** Math.ceil(Math.log10(Math.max(high ?? 1, 1e-3) * 1.01))] }
          : { range: chart.scale ?? ((_, low, high) => [0, Math.max(high ?? 0, 1) * 1.1]) },
      },
      axes: [
        { ...axis, size: 24, values: (_, splits) => splits.map((time) => new Date(time * 1000).toLocaleTimeString("en-GB")), space: 90 },
        { ...axis, size: 62, space: 28, incrs: chart.whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] : undefined,
          values: (_, splits) => splits.map((value) => (value === null ? "" : chart.value(value))) },
      ],
    }, [[], ...series.map(() => [])], plot);
  }
}
