import { Main } from '../app';
import type { Accuracy, CheckAnswer } from '../data/documents';
import { count, number, short } from '../data/format';
import type { Origin } from '../data/types';
import { say, t } from '../i18n';
import { Stack } from '../parts/stack';

/** The answer of `numscope check`: what computes wrongly, and how accurate every operator was. */
export function Verified({ answer }: { answer: CheckAnswer }) {
  const known = answer.verified;
  const wrong = known?.wrong ?? [];
  return (
    <Main>
      <section class={`card verdict v-${answer.found ? 'origin' : 'identical'}`} data-testid="verdict">
        <h1>{t(wrong.length ? 'A call computes wrongly.' : answer.found ? 'Something non-finite is born in this run.' : 'Nothing is wrong in this run.')}</h1>
        {answer.origin && <p class="as-is">{say(answer.origin.reason)}</p>}
      </section>
      <div class="columns">
        <div class="stack-y">
          {answer.origin && <Found origin={answer.origin} />}
          {known && <Picture rows={known.accuracy} />}
        </div>
        <div class="stack-y">
          {known && <Coverage verified={known} />}
          <Others wrong={wrong.slice(1)} />
        </div>
      </div>
    </Main>
  );
}

function Found({ origin }: { origin: Origin }) {
  const source = origin.source;
  return (
    <section class="card" data-testid="origin">
      <h2>{t('Origin')}</h2>
      <span class="origin-name">{origin.call}</span>
      <p class="said">{say(origin.reason)}</p>
      <dl class="facts">
        {origin.module && (
          <>
            <dt>{t('module')}</dt>
            <dd>{origin.module}</dd>
          </>
        )}
        <dt>{t('where')}</dt>
        <dd>{t('{0}, step {1}, rank {2}', t(origin.phase), origin.step, origin.rank)}</dd>
        {origin.error?.relative != null && (
          <>
            <dt>{t('own error')}</dt>
            <dd>
              <b class="mono">{short(origin.error.relative)}</b>
              {origin.error.expected != null && <span class="quiet"> {t('relative; healthy kernels may have {0}', short(origin.error.expected))}</span>}
            </dd>
          </>
        )}
      </dl>
      {source && <Stack frames={[{ file: source.file, line: source.line, function: source.function ?? '', code: source.code ?? '', user: true }]} />}
    </section>
  );
}

const LEAST = -10; // powers of two at the ends of the axis, in roundoffs of float32
const MOST = 26;
const WIDTH = 560;
const ROW = 22;
const HEAD = 24;
const LEFT = 232;
const RIGHT = 96;

/** A place on the axis, from 0 to 1; nothing at all is at its left end. */
export function along(units: number | null): number {
  if (units === null || units <= 0) return 0;
  if (!Number.isFinite(units)) return 1;
  return Math.min(Math.max((Math.log2(units) - LEAST) / (MOST - LEAST), 0), 1);
}

/** The own error of each operator, and its limit, on one axis. */
function Picture({ rows }: { rows: Accuracy[] }) {
  const share = (row: Accuracy) => (number(row.units) ?? 0) / (number(row.limit) || 1);
  const sorted = [...rows].sort((a, b) => b.wrong - a.wrong || share(b) - share(a));
  const height = HEAD + sorted.length * ROW + 8;
  const x = (units: number | null) => LEFT + along(units) * WIDTH;
  const ticks = [-8, 0, 8, 16, 24];
  return (
    <section class="card" data-testid="picture">
      <h2>{t('Own error of each operator, and what healthy kernels may have')}</h2>
      <div class="scroll">
        <svg class="own-errors" viewBox={`0 0 ${LEFT + WIDTH + RIGHT} ${height}`} role="img" aria-label={t('Own error of each operator, and what healthy kernels may have')}>
          {ticks.map((power) => (
            <g key={power}>
              <path class="tick" d={`M${x(2 ** power)} ${HEAD - 6}V${height}`} />
              <text x={x(2 ** power)} y={12} text-anchor="middle">
                2<tspan dy="-4" font-size="8">{String(power).replace('-', '−')}</tspan>
              </text>
            </g>
          ))}
          {sorted.map((row, i) => {
            const y = HEAD + i * ROW + ROW / 2;
            const bad = row.wrong > 0;
            return (
              <g key={`${row.operator}/${row.dtype}/${row.device}`} class={bad ? 'bad' : ''}>
                <title>{`${row.operator} ${row.dtype} ${row.device}\n${count(row.calls)} × · ${t('own error')} ${short(row.own_error) || '0'} · ${short(row.own_ulp) || '0'} ulp`}</title>
                <text x={LEFT - 10} y={y + 4} text-anchor="end">
                  {row.operator.length > 24 ? `${row.operator.slice(0, 23)}…` : row.operator} <tspan class="dim">{row.dtype.replace('float', 'f')}</tspan>
                </text>
                <path class="own" d={`M${LEFT} ${y}H${Math.max(x(number(row.units)), LEFT + 2)}`} />
                <circle cx={x(number(row.units))} cy={y} r={4} />
                <path class="limit-mark" d={`M${x(number(row.limit))} ${y - 7}V${y + 7}`} />
                <text x={LEFT + WIDTH + 10} y={y + 4} class="dim">
                  {short(row.own_error) || '0'}
                </text>
              </g>
            );
          })}
        </svg>
      </div>
      <p class="small quiet">
        {t('The dot is the largest error beyond rounding the result, in roundoffs of float32; the bar is the limit; the figure is the error relative to the output.')}
      </p>
    </section>
  );
}

function Coverage({ verified }: { verified: NonNullable<CheckAnswer['verified']> }) {
  const { none = 0, ...counts } = verified.operators;
  const total = Object.values(counts).reduce((sum, n) => sum + n, 0);
  const reasons = Object.entries(verified.not_verified).sort((a, b) => b[1] - a[1]);
  return (
    <section class="card" data-testid="coverage">
      <h2>{t('Verified')}</h2>
      <p>
        {t('{0} operators were held against exact arithmetic, {1} were not.', count(total), count(none))}
      </p>
      {reasons.length > 0 && (
        <div class="list small">
          {reasons.slice(0, 20).map(([reason, n]) => (
            <div key={reason} class="row">
              <span class="grow wrap">{say(reason)}</span>
              <span class="mono">{count(n)}</span>
            </div>
          ))}
        </div>
      )}
    </section>
  );
}

function Others({ wrong }: { wrong: Origin[] }) {
  if (!wrong.length) return null;
  return (
    <section class="card">
      <h2>{t('Other calls that compute wrongly')}</h2>
      <div class="list">
        {wrong.slice(0, 30).map((origin) => (
          <div key={`${origin.call}/${origin.step}/${origin.rank}`}>
            <div class="mono wrap">{origin.call}</div>
            <div class="small quiet">{say(origin.reason)}</div>
          </div>
        ))}
      </div>
      {wrong.length > 30 && <p class="quiet small">{t('{0} more', count(wrong.length - 30))}</p>}
    </section>
  );
}
