// The figures of the last minutes as columns, for the charts. Only snapshots received while the page is visible count.

const LONGEST_S = 600;
const RATE_OVER_S = 1.5;
const GAP_S = 2.5;

export class History {
  constructor() {
    this.times = [];
    this.columns = {};
    this.totals = []; // {time, output, prompt} of the last seconds, for the rates
  }

  // Returns the rates {output, prompt} in tokens per second; null before the second snapshot.
  add(snapshot, figures) {
    const last = this.times.at(-1);
    if (last !== undefined && snapshot.time - last > GAP_S) this.push(last + 0.001, {}); // a gap in the lines
    const rates = this.rates(snapshot);
    this.push(snapshot.time, { ...figures, output: rates?.output ?? null, prompt: rates?.prompt ?? null });
    return rates;
  }

  rates({ time, totals }) {
    this.totals = this.totals.filter((past) => time - past.time < GAP_S && past.output <= totals.output_tokens);
    const now = { time, output: totals.output_tokens, prompt: totals.prompt_tokens };
    const past = this.totals.findLast((entry) => time - entry.time >= RATE_OVER_S) ?? this.totals[0];
    this.totals.push(now);
    if (!past || time - past.time < 0.2) return null;
    const elapsed = time - past.time;
    return { output: (now.output - past.output) / elapsed, prompt: (now.prompt - past.prompt) / elapsed };
  }

  push(time, figures) {
    this.times.push(time);
    for (const name of Object.keys(figures)) {
      this.columns[name] ??= new Array(this.times.length - 1).fill(null);
    }
    for (const [name, column] of Object.entries(this.columns)) column.push(figures[name] ?? null);
    if (this.times[0] < time - LONGEST_S - 10) this.drop();
  }

  drop() {
    const first = this.times.findIndex((time) => time >= this.times.at(-1) - LONGEST_S);
    this.times = this.times.slice(first);
    for (const name of Object.keys(this.columns)) this.columns[name] = this.columns[name].slice(first);
  }

  // Returns [times, column, …] of the last seconds.
  last(seconds, names) {
    const end = this.times.at(-1) ?? 0;
    const first = Math.max(this.times.findIndex((time) => time >= end - seconds), 0);
    return [this.times.slice(first), ...names.map((name) => (this.columns[name] ?? []).slice(first))];
  }
}
