// The losses of both runs, step by step, with the step of the origin marked.
import { exact } from '../data/format';
import { t } from '../i18n';

export interface LossPoint {
  step: number;
  target: number | string;
  reference: number | string;
}

const WIDTH = 400;
const HEIGHT = 120;
const MOST = 600; // points that are drawn of each curve

/** As many digits as two runs are told apart by. */
function figure(value: number | string): string {
  const size = Number(value);
  return Number.isFinite(size) ? String(Number(size.toPrecision(7))) : exact(value);
}

export function LossCurve({ losses, origin }: { losses: LossPoint[]; origin: number | null }) {
  if (!losses.length) return null;
  const last = losses[losses.length - 1]!;
  const values = losses.flatMap((one) => [Number(one.target), Number(one.reference)]).filter(Number.isFinite);
  const low = Math.min(...values);
  const high = Math.max(...values);
  const first = losses[0]!.step;
  const span = Math.max(last.step - first, 1);
  const x = (step: number) => ((step - first) / span) * WIDTH;
  const y = (value: number) => 6 + (high > low ? (high - value) / (high - low) : 0.5) * (HEIGHT - 12);
  const every = Math.ceil(losses.length / MOST);
  const drawn = losses.filter((_, i) => i % every === 0 || i === losses.length - 1);
  const path = (side: 'target' | 'reference') =>
    drawn
      .filter((one) => Number.isFinite(Number(one[side])))
      .map((one, i) => `${i ? 'L' : 'M'}${x(one.step).toFixed(2)} ${y(Number(one[side])).toFixed(2)}`)
      .join('');
  return (
    <section class="card" data-testid="losses">
      <h2>{t('Loss')}</h2>
      {losses.length > 1 && (
        <svg class="losses" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={t('Loss')}>
          {origin !== null && origin >= first && origin <= last.step && <path class="at" d={`M${x(origin)} 0V${HEIGHT}`} />}
          <path class="reference" d={path('reference')} />
          <path class="target" d={path('target')} />
        </svg>
      )}
      <p class="small">
        <i class="swatch" />
        {t('Target')} <b class="mono">{figure(losses[0]!.target)}</b>
        {losses.length > 1 && <b class="mono"> … {figure(last.target)}</b>}
        {'   '}
        <i class="swatch reference" />
        {t('Reference')} <b class="mono">{figure(losses[0]!.reference)}</b>
        {losses.length > 1 && <b class="mono"> … {figure(last.reference)}</b>}
      </p>
      {origin !== null && losses.length > 1 && (
        <p class="small quiet">
          <i class="swatch at" />
          {t('step {0}: the origin', origin)}
        </p>
      )}
    </section>
  );
}
