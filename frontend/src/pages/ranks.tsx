import { useEffect, useRef, useState } from 'preact/hooks';
import { Main } from '../app';
import { count, short } from '../data/format';
import { arranged, type Order } from '../data/ranks';
import type { Heat } from '../data/types';
import { queryOf } from '../data/view';
import { t } from '../i18n';
import { link, route, setQuery } from '../route';
import { comparing, source, summary } from '../state';
import { GLYPH, VERDICTS, verdictClass } from '../verdict';

const MOST = 256; // ranks that are drawn at first

/** The ranks down, the steps across: each cell is coloured by its worst verdict or by its largest error. */
export function Ranks() {
  const [heat, setHeat] = useState<Heat | null>(null);
  const [most, setMost] = useState(MOST);
  const version = summary.value!.version;
  useEffect(() => void source.value!.heat().then(setHeat), [version]);
  const query = route.value.query;
  const order: Order = query.get('order') === 'number' ? 'number' : 'worst';
  const colour = query.get('colour') === 'error' ? 'error' : 'verdict';
  if (!heat) return <Main><p class="quiet">…</p></Main>;
  const lines = arranged(heat, order);
  const wrong = lines.filter((i) => heat.verdict[i]!.some((word) => word === 'origin' || word === 'inherited')).length;
  const largest = Math.max(...heat.error.flat().map((error) => error ?? 0), 1e-30);
  return (
    <Main>
      <div class="title-row">
        <h1 style={{ fontFamily: 'var(--sans)' }}>{t('Ranks and steps')}</h1>
        <span class="quiet" data-testid="ranks-summary">
          {comparing.value && wrong > 0
            ? t('{0} of {1} ranks have calls that are wrong', count(wrong), count(heat.ranks.length))
            : t('{0} ranks, {1} steps', count(heat.ranks.length), count(heat.steps.length))}
        </span>
        <span class="grow" />
        <span class="segments" role="group" aria-label={t('order')}>
          <button aria-pressed={order === 'worst'} onClick={() => setQuery({ order: null })}>{t('worst first')}</button>
          <button aria-pressed={order === 'number'} onClick={() => setQuery({ order: 'number' })}>{t('by number')}</button>
        </span>
        <span class="segments" role="group" aria-label={t('colour')}>
          <button aria-pressed={colour === 'verdict'} onClick={() => setQuery({ colour: null })}>{t('verdict')}</button>
          <button aria-pressed={colour === 'error'} onClick={() => setQuery({ colour: 'error' })}>{t('error')}</button>
        </span>
      </div>
      <section class="card">
        <Grid heat={heat} lines={lines.slice(0, most)} colour={colour} largest={largest} />
        {lines.length > most && (
          <p style={{ marginTop: '10px' }}>
            <button class="button" onClick={() => setMost(most * 4)}>{t('show {0} more ranks', count(Math.min(lines.length - most, most * 3)))}</button>
          </p>
        )}
        <Legend colour={colour} largest={largest} />
      </section>
    </Main>
  );
}

function Grid({ heat, lines, colour, largest }: { heat: Heat; lines: number[]; colour: 'verdict' | 'error'; largest: number }) {
  const grid = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState<[number, number]>([0, 0]);
  const width = heat.steps.length;
  const move = (line: number, column: number) => {
    const next: [number, number] = [Math.max(0, Math.min(line, lines.length - 1)), Math.max(0, Math.min(column, width - 1))];
    setAt(next);
    grid.current!.querySelector<HTMLElement>(`[data-at="${next[0]}/${next[1]}"]`)?.focus();
  };
  const onKey = (event: KeyboardEvent) => {
    const [line, column] = at;
    const steps: Record<string, [number, number]> = {
      ArrowUp: [line - 1, column],
      ArrowDown: [line + 1, column],
      ArrowLeft: [line, column - 1],
      ArrowRight: [line, column + 1],
      Home: [line, 0],
      End: [line, width - 1],
      PageUp: [line - 16, column],
      PageDown: [line + 16, column],
    };
    const to = steps[event.key];
    if (!to || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move(...to);
  };
  return (
    <div class="scroll ranks-scroll">
      <div
        ref={grid}
        class="heat ranks"
        role="grid"
        aria-label={t('Ranks and steps')}
        style={{ gridTemplateColumns: `max-content repeat(${width}, minmax(22px, 44px))` }}
        onKeyDown={onKey}
        data-testid="ranks"
      >
        <div class="line head" role="row">
          <span role="columnheader">{t('step')}</span>
          {heat.steps.map((step, j) => (
            <span key={step} role="columnheader">{width <= 24 || j % Math.ceil(width / 24) === 0 ? step : ''}</span>
          ))}
        </div>
        {lines.map((i, line) => (
          <div class="line" role="row" key={heat.ranks[i]}>
            <span role="rowheader">{t('rank')} {heat.ranks[i]}</span>
            {heat.steps.map((step, j) => {
              const word = heat.verdict[i]![j];
              const error = heat.error[i]![j] ?? null;
              const calls = heat.calls[i]![j]!;
              const said = calls ? `${word ? t(word) : t('finite')}, ${count(calls)} ${t('calls')}, ${short(error)}` : t('not compared');
              const text = `${t('rank')} ${heat.ranks[i]}, ${t('step')} ${step}: ${said}`;
              return (
                <a
                  key={step}
                  role="gridcell"
                  class={`${calls ? verdictClass(word) : 'lacking'} by-${colour}`}
                  style={colour === 'error' ? { '--share': shareOf(error, largest) } : undefined}
                  href={calls ? link('calls', [], queryOf({ step: [String(step)], rank: [String(heat.ranks[i])], sort: 'error_out', descending: true })) : undefined}
                  tabIndex={at[0] === line && at[1] === j ? 0 : -1}
                  data-at={`${line}/${j}`}
                  onFocus={() => setAt([line, j])}
                  aria-label={text}
                  title={text}
                >
                  {colour === 'verdict' && word ? GLYPH[word] : ''}
                </a>
              );
            })}
          </div>
        ))}
      </div>
    </div>
  );
}

const SMALLEST = 1e-9; // of the largest error: no colour

function shareOf(error: number | null, largest: number): string {
  if (!error) return '0%';
  return `${Math.round(100 * Math.max(0.06, 1 - Math.log(Math.min(error / largest, 1)) / Math.log(SMALLEST)))}%`;
}

function Legend({ colour, largest }: { colour: 'verdict' | 'error'; largest: number }) {
  if (colour === 'error') {
    return <p class="small quiet ranks-legend">{t('The darker, the larger the largest error of a call; the darkest is {0}.', short(largest))}</p>;
  }
  return (
    <div class="legend ranks-legend">
      {VERDICTS.map((word) => (
        <span key={word} class={`badge ${verdictClass(word)}`}>
          <i aria-hidden="true">{GLYPH[word]}</i>
          {t(word)}
        </span>
      ))}
    </div>
  );
}
