import { useEffect, useState } from 'preact/hooks';
import { short } from '../data/format';
import { server } from '../data/source';
import type { Histogram as HistogramData } from '../data/types';
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

/** The distribution of a slot's values on both sides, and of their difference. */
export function HistogramCard({ row, slot }: { row: number; slot: string }) {
  const [scale, setScale] = useState<'linear' | 'log'>('linear');
  const [tall, setTall] = useState(false);
  const [data, setData] = useState<HistogramData | null>(null);
  useEffect(() => {
    let gone = false;
    void server.histogram(row, slot, scale).then((found) => !gone && setData(found));
    return () => {
      gone = true;
    };
  }, [scale]);
  const series = [
    { name: t('Target'), counts: data?.value.target, colour: 'target' },
    { name: t('Reference'), counts: data?.value.reference, colour: 'reference' },
  ].flatMap((one) => (one.counts ? [{ ...one, counts: one.counts }] : []));
  return (
    <section class="card" data-testid="histogram">
      <div class="row" style={{ marginBottom: '8px' }}>
        <h2 class="grow">{t('Histogram')}</h2>
        <span class="segments" role="group" aria-label={t('Histogram')}>
          <button aria-pressed={scale === 'linear'} onClick={() => setScale('linear')}>{t('linear')}</button>
          <button aria-pressed={scale === 'log'} onClick={() => setScale('log')}>{t('log')}</button>
        </span>
        <label class="check">
          <input type="checkbox" checked={tall} onChange={(e) => setTall(e.currentTarget.checked)} />
          {t('log counts')}
        </label>
      </div>
      {data && (
        <>
          <p class="small quiet row">
            {series.map((one) => (
              <span key={one.name} style={{ color: `var(--${one.colour})` }}>■ {one.name}</span>
            ))}
            <span>{scale === 'log' ? t('size of the values, by powers of ten') : t('values')}</span>
          </p>
          <Histogram edges={data.value.edges} series={series} power={scale === 'log'} tall={tall} />
          {data.difference && (
            <>
              <p class="small quiet" style={{ marginTop: '10px' }}>
                <span style={{ color: 'var(--origin-ink)' }}>■ {t('|difference|')}</span>{' '}
                {t('by powers of ten; {0} elements are equal, {1} differ by what is not finite', short(data.difference.equal), short(data.difference.non_finite))}
              </p>
              {data.difference.difference.some((n) => n > 0) && (
                <Histogram edges={data.difference.edges} series={[{ name: t('difference'), counts: data.difference.difference, colour: 'origin' }]} power tall={tall} />
              )}
            </>
          )}
        </>
      )}
    </section>
  );
}
