// Error over call order on a canvas: uPlot gives axes, zoom and cursor, the points are drawn here, one pixel once.
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import type { VerdictWord } from '../data/types';
import { t } from '../i18n';
import { colour } from '../state';
import { mark } from './mark';
import { level, lower, type Points } from './points';

const SEVERITY: (VerdictWord | '')[] = ['', 'identical', 'equivalent', 'inherited', 'unmatched', 'origin'];

interface Spot {
  x: number;
  y: number;
}

export interface PlotEvents {
  hover: (index: number, left: number, top: number) => void;
  leave: () => void;
  click: (index: number) => void;
  zoom: (start: number, end: number) => void;
}

export interface Options {
  inputs: boolean;
  expected: boolean;
}

export class Plot {
  private u: uPlot;
  private near = -1;

  constructor(
    private readonly host: HTMLElement,
    private p: Points,
    private options: Options,
    private readonly events: PlotEvents,
  ) {
    this.u = this.make();
  }

  private make(): uPlot {
    const ink = colour('ink-2');
    const line = { stroke: colour('line'), width: 1 };
    const axis = { stroke: ink, grid: line, ticks: line, font: '11px system-ui, sans-serif', size: 46 };
    const last = this.p.at.length ? this.p.at[this.p.at.length - 1]! : 1;
    const u = new uPlot(
      {
        width: this.host.clientWidth,
        height: this.host.clientHeight,
        legend: { show: false },
        cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false }, y: false },
        scales: {
          x: { time: false, range: () => this.range() },
          y: { range: () => [this.p.floor - (this.p.lone ? 1.6 : 0.6), this.p.ceiling + 0.6] },
        },
        axes: [
          { ...axis, size: 30, values: (_: uPlot, splits: number[]) => splits.map((v) => (Number.isInteger(v) ? v.toLocaleString('en') : '')) },
          { ...axis, size: 58, splits: () => this.splits(), values: (_: uPlot, splits: number[]) => splits.map((v) => this.label(v)) },
        ],
        series: [{}, { show: true, paths: () => null, points: { show: false } }],
        hooks: {
          drawAxes: [(u) => this.bands(u)],
          draw: [(u) => this.draw(u)],
          setCursor: [(u) => this.hover(u)],
          setSelect: [
            (u) => {
              if (u.select.width < 4) return;
              this.zoomTo(u.posToVal(u.select.left, 'x'), u.posToVal(u.select.left + u.select.width, 'x'));
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
        },
      },
      [
        [this.p.at[0] ?? 0, last],
        [0, 0],
      ],
      this.host,
    );
    const over = u.over;
    let down = 0;
    over.addEventListener('mousedown', (e) => (down = e.clientX));
    over.addEventListener('click', (e) => {
      if (Math.abs(e.clientX - down) < 4 && this.near >= 0) this.events.click(this.near);
    });
    over.addEventListener('dblclick', () => this.zoomTo(0, this.p.total - 1));
    over.addEventListener('mouseleave', () => this.events.leave());
    over.addEventListener(
      'wheel',
      (e) => {
        e.preventDefault();
        const [from, to] = this.range();
        const x = u.posToVal(e.offsetX, 'x');
        const factor = Math.exp(Math.sign(e.deltaY) * 0.25);
        this.zoomTo(x - (x - from) * factor, x + (to - x) * factor);
      },
      { passive: false },
    );
    return u;
  }

  private from = 0;
  private to = 0;

  private range(): [number, number] {
    if (this.to <= this.from) return [-0.5, Math.max(this.p.total - 0.5, 0.5)];
    return [this.from, this.to];
  }

  zoomTo(from: number, to: number): void {
    const end = Math.max(this.p.total - 1, 1);
    const a = Math.max(-0.5, Math.min(from, end - 2));
    const b = Math.min(end + 0.5, Math.max(to, a + 4));
    if (a <= 0 && b >= end) [this.from, this.to] = [0, 0];
    else [this.from, this.to] = [a, b];
    this.u.setScale('x', { min: this.range()[0], max: this.range()[1] });
    this.events.zoom(this.from, this.to);
  }

  show(p: Points, options: Options): void {
    this.p = p;
    this.options = options;
    this.u.setData([
      [0, Math.max(p.total - 1, 1)],
      [0, 0],
    ]);
  }

  resize(): void {
    this.u.setSize({ width: this.host.clientWidth, height: this.host.clientHeight });
  }

  destroy(): void {
    this.u.destroy();
  }

  private splits(): number[] {
    const { floor, ceiling } = this.p;
    const every = Math.max(1, Math.ceil((ceiling - floor) / 10));
    const marks = this.p.lone ? [floor - 1, floor] : [floor];
    for (let value = Math.ceil((floor + 1) / every) * every; value < ceiling; value += every) marks.push(value);
    return [...marks, ceiling];
  }

  private label(value: number): string {
    if (value < this.p.floor) return '◇';
    if (value === this.p.floor) return '0';
    if (value === this.p.ceiling) return '∞ NaN';
    if (value >= -2 && value <= 3) return String(Number((10 ** value).toPrecision(1)));
    return `1e${value < 0 ? '−' : ''}${Math.abs(value)}`;
  }

  /** Steps as alternating stripes, changes of phase as fine lines, each named where there is room. */
  private bands(u: uPlot): void {
    const { ctx } = u;
    const { at, step, phase, phases } = this.p;
    const { left, top, width, height } = u.bbox;
    const [from, to] = this.range();
    const scale = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    ctx.font = `${11 * scale}px system-ui, sans-serif`;
    ctx.textBaseline = 'top';
    ctx.textAlign = 'left';
    let i = Math.max(0, lower(at, from) - 1);
    let labelled = -Infinity;
    let narrow = false;
    while (i < at.length && at[i]! <= to) {
      let j = i;
      while (j < at.length && step[j] === step[i] && phase[j] === phase[i] && at[j]! <= to) j++;
      const x0 = u.valToPos(Math.max(at[i]! - 0.5, from), 'x', true);
      const x1 = j < at.length ? u.valToPos(Math.min(at[j]! - 0.5, to), 'x', true) : left + width;
      if (step[i]! % 2 === 1) {
        ctx.fillStyle = colour('sunken');
        ctx.fillRect(x0, top, x1 - x0, height);
      }
      ctx.fillStyle = colour('line');
      if (i > 0) ctx.fillRect(x0, top, scale, height);
      // Where there is no room for the phase, the step is named, as often as names fit side by side.
      const whole = `${step[i]} · ${t(phases[phase[i]!] ?? '')}`;
      const roomy = x1 - x0 > ctx.measureText(whole).width + 10 * scale;
      if (i === 0 || step[i - 1] !== step[i]) narrow = this.narrow(u, i, to);
      if (x0 > labelled && (roomy || narrow)) {
        const name = roomy ? whole : `${t('step')} ${step[i]}`;
        ctx.fillStyle = colour('ink-3');
        ctx.fillText(name, x0 + 5 * scale, top + 4 * scale);
        labelled = x0 + ctx.measureText(name).width + 10 * scale;
        narrow = false;
      }
      i = j;
    }
    ctx.restore();
  }

  /** Whether none of the stripes of the step that begins at a point is as wide as a name. */
  private narrow(u: uPlot, begin: number, to: number): boolean {
    const { at, step, phase } = this.p;
    for (let i = begin; i < at.length && step[i] === step[begin] && at[i]! <= to; ) {
      let j = i;
      while (j < at.length && step[j] === step[begin] && phase[j] === phase[i]) j++;
      if (u.valToPos(at[Math.min(j, at.length - 1)]!, 'x', true) - u.valToPos(at[i]!, 'x', true) > 90 * devicePixelRatio) return false;
      i = j;
    }
    return true;
  }

  private draw(u: uPlot): void {
    const { ctx } = u;
    const { at, into, code, verdict, expected } = this.p;
    const { left, top, width, height } = u.bbox;
    const [from, to] = this.range();
    const first = lower(at, from);
    const last = lower(at, to + 1);
    const scale = devicePixelRatio;
    const many = last - first > 1500;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    if (this.options.expected) {
      ctx.strokeStyle = colour('ink-3');
      ctx.globalAlpha = 0.55;
      ctx.setLineDash([3 * scale, 3 * scale]);
      ctx.lineWidth = scale;
      ctx.beginPath();
      let before = -1;
      for (let i = first; i < last; i++) {
        const value = expected[i]!;
        if (!Number.isFinite(value)) continue;
        const x = u.valToPos(at[i]!, 'x', true);
        if (before >= 0 && x - before < scale) continue;
        const y = u.valToPos(Math.min(level(value, this.p), this.p.ceiling - 0.5), 'y', true);
        if (before < 0) ctx.moveTo(x, y);
        else ctx.lineTo(x, y);
        before = x;
      }
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.globalAlpha = 1;
    }
    // A pixel that a worse verdict has taken is not drawn again: 100,000 points cost as many as the screen has.
    const columns = Math.ceil(width / scale) + 1;
    const taken = new Uint8Array(columns * (Math.ceil(height / scale) + 1));
    const rank = verdict.map((word) => SEVERITY.indexOf(word));
    const buckets: number[][] = SEVERITY.map(() => []);
    for (let i = first; i < last; i++) buckets[code[i]! < 0 ? 0 : rank[code[i]!]!]!.push(i);
    const spot = (i: number, value: number): Spot | null => {
      if (Number.isNaN(value)) return null;
      const x = u.valToPos(at[i]!, 'x', true);
      const y = u.valToPos(value, 'y', true);
      if (!many) return { x, y };
      const place = Math.floor((y - top) / scale) * columns + Math.floor((x - left) / scale);
      if (taken[place]) return null;
      taken[place] = 1;
      return { x, y };
    };
    const kept = (value: Spot | null): value is Spot => value !== null;
    const layers = buckets
      .map((bucket, severity) => ({ bucket, severity }))
      .reverse()
      .map(({ bucket, severity }) => ({
        word: SEVERITY[severity]!,
        outputs: bucket.map((i) => spot(i, this.height(i))).filter(kept),
        inputs: this.options.inputs ? bucket.map((i) => spot(i, level(into[i]!, this.p))).filter(kept) : [],
      }))
      .reverse();
    const size = (many ? 2.4 : 6) * scale;
    for (const { word, outputs, inputs } of layers) {
      ctx.fillStyle = colour(word || 'equivalent');
      ctx.globalAlpha = 0.45;
      for (const { x, y } of inputs) ctx.fillRect(x - size * 0.6, y - scale / 2, size * 1.2, scale);
      ctx.globalAlpha = 1;
      const grown = word === 'origin' ? 13 * scale : word === 'unmatched' ? Math.max(size, 4 * scale) : size;
      ctx.strokeStyle = colour('card');
      ctx.lineWidth = 1.5 * scale;
      for (const { x, y } of outputs) mark(ctx, word, x, y, grown, many && word !== 'origin');
    }
    ctx.restore();
  }

  /** Where a point is drawn: a call without a partner has no error, and lies on its own line. */
  private height(i: number): number {
    const value = this.p.out[i]!;
    if (!Number.isNaN(value)) return level(value, this.p);
    return this.p.verdict[this.p.code[i]!] === 'unmatched' ? this.p.floor - 1 : NaN;
  }

  private hover(u: uPlot): void {
    const { left, top } = u.cursor;
    if (left === undefined || top === undefined || left < 0 || top < 0) return;
    const { at } = this.p;
    const reach = 24;
    let best = reach * reach;
    this.near = -1;
    for (let i = lower(at, u.posToVal(left - reach, 'x')); i < at.length; i++) {
      const x = u.valToPos(at[i]!, 'x');
      if (x > left + reach) break;
      const y = u.valToPos(this.height(i), 'y');
      const away = (x - left) ** 2 + (y - top) ** 2;
      if (away < best) [best, this.near] = [away, i];
    }
    u.over.style.cursor = this.near >= 0 ? 'pointer' : 'crosshair';
    if (this.near < 0) return this.events.leave();
    const x = u.valToPos(at[this.near]!, 'x') + u.over.offsetLeft;
    const y = u.valToPos(this.height(this.near), 'y') + u.over.offsetTop;
    this.events.hover(this.near, x, y);
  }
}
