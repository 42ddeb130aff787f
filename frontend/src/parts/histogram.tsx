import { short } from '../data/format';
import { t } from '../i18n';

const WIDTH = 640;
const HEIGHT = 190;
const BOTTOM = 22;

interface Series {
  name: string;
  counts: number[];
  colour: string;
}

/** Counts over bins; heights by the logarithm where asked, so that rare values are seen beside common ones. */
export function Histogram({ edges, series, power, tall }: { edges: number[]; series: Series[]; power: boolean; tall: boolean }) {
  const most = Math.max(1, ...series.flatMap((one) => one.counts));
  const x = (i: number) => (i * WIDTH) / (edges.length - 1);
  const y = (n: number) => (HEIGHT - BOTTOM) * (1 - (tall ? Math.log1p(n) / Math.log1p(most) : n / most)) + 2;
  const label = (value: number) => (power ? `1e${short(Number(value.toFixed(1)))}` : short(value));
  const marks = [0, 0.25, 0.5, 0.75, 1].map((f) => Math.round(f * (edges.length - 1)));
  return (
    <svg class="histogram" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={t('Histogram')}>
      {series.map((one, index) => (
        <path
          key={one.name}
          d={outline(one.counts, x, y, HEIGHT - BOTTOM + 2)}
          fill={`var(--${one.colour})`}
          fill-opacity={index === 0 ? 0.28 : 0.14}
          stroke={`var(--${one.colour})`}
          stroke-width={1.4}
          vector-effect="non-scaling-stroke"
        >
          <title>{one.name}</title>
        </path>
      ))}
      {marks.map((i) => (
        <text
          key={i}
          x={x(i)}
          y={HEIGHT - 6}
          font-size={11}
          fill="var(--ink-2)"
          text-anchor={i === 0 ? 'start' : i === edges.length - 1 ? 'end' : 'middle'}
        >
          {label(edges[i]!)}
        </text>
      ))}
    </svg>
  );
}

function outline(counts: number[], x: (i: number) => number, y: (n: number) => number, bottom: number): string {
  let path = `M0 ${bottom}`;
  counts.forEach((n, i) => {
    const top = y(n).toFixed(1);
    path += ` L${x(i).toFixed(1)} ${top} L${x(i + 1).toFixed(1)} ${top}`;
  });
  return `${path} L${x(counts.length).toFixed(1)} ${bottom} Z`;
}
