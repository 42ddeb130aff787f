import { useEffect, useState } from 'preact/hooks';
import { Main } from '../app';
import { exact, number, short, type Numeric } from '../data/format';
import type { Cell } from '../data/frame';
import { server } from '../data/source';
import type { CallDetail, CallRecord, Element, Histogram as HistogramData, TensorAbout, TensorRecord } from '../data/types';
import { queryOf } from '../data/view';
import { t } from '../i18n';
import { Heatmap } from '../parts/heatmap';
import { Histogram } from '../parts/histogram';
import { Stack } from '../parts/stack';
import { Values } from '../parts/values';
import { go, link, route } from '../route';
import { comparing, source, summary } from '../state';
import { Badge, GLYPH, isVerdict, verdictClass } from '../verdict';

export function Tensor() {
  const about = summary.value!;
  const from = source.value!;
  const row = Number(route.value.parts[0] ?? 0);
  const [detail, setDetail] = useState<CallDetail | null>(null);
  const [fault, setFault] = useState('');
  useEffect(() => {
    let gone = false;
    from.call(row).then(
      (found) => !gone && (setDetail(found), setFault('')),
      (error: Error) => !gone && setFault(error.message),
    );
    return () => {
      gone = true;
    };
  }, [row, about.version]);
  const last = about.tables.calls.rows - 1;
  const slotNow = route.value.parts[1];
  const move = (by: number) => row + by >= 0 && row + by <= last && go(link('tensor', [row + by]));
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || (event.target as HTMLElement).closest('input, select, dialog')) return;
      if (event.key === 'j') move(1);
      else if (event.key === 'k') move(-1);
      else if (event.key === 'n' || event.key === 'p') {
        const whole = { table: 'calls', q: '', regex: false, module: '', verdict: [], phase: [], kind: [], dtype: [], step: [], rank: [], sort: '', descending: false } as const;
        const direction = event.key === 'n' ? 1 : -1;
        void from.find({ ...whole, verdict: [], phase: [], kind: [], dtype: [], step: [], rank: [] }, row, direction).then((hit) => hit.row !== null && go(link('tensor', [hit.row])));
      }
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, [row]);

  if (fault) return <Main><div class="error">{fault}</div></Main>;
  if (!detail || detail.row !== row) return <Main><p class="quiet">…</p></Main>;
  const { call } = detail;
  const slots = detail.slots;
  const chosen = slots.find((slot) => slot['slot'] === slotNow) ?? firstSlot(slots);
  return (
    <Main>
      <div class="title-row">
        <Badge word={call['verdict']} pill />
        <h1>{call['target_name'] ?? call['reference_name']}</h1>
        <span class="grow" />
        <button class="button" disabled={row === 0} onClick={() => move(-1)} title="k">← {t('Previous')}</button>
        <button class="button" disabled={row >= last} onClick={() => move(1)} title="j">{t('Next')} →</button>
        {from.live && <a class="button" href={link('model', [], new URLSearchParams({ row: String(row) }))}>{t('Show in the model')}</a>}
      </div>
      <CallFacts call={call} />
      {slots.length > 0 && (
        <nav class="slots" aria-label={t('Slots')}>
          {slots.map((slot) => (
            <a key={String(slot['slot'])} class={verdictClass(slot['verdict'])} href={link('tensor', [row, String(slot['slot'])])} aria-current={slot === chosen ? 'true' : undefined}>
              {isVerdict(slot['verdict']) && <i aria-hidden="true">{GLYPH[slot['verdict']]}</i>}
              {slot['slot']}
            </a>
          ))}
        </nav>
      )}
      <div class="columns">
        <div class="stack-y">
          {chosen ? <SlotCards key={`${row}/${chosen['slot']}`} row={row} slot={chosen} detail={detail} /> : <div class="note">{t('This call has no tensors.')}</div>}
        </div>
        <div class="stack-y">
          {chosen && comparing.value && <Errors slot={chosen} />}
          <Arguments detail={detail} />
          <StackCard title={comparing.value ? t('Stack of the target') : t('Call stack')} record={detail.target} />
          {comparing.value && !detail.target?.frames.length && <StackCard title={t('Stack of the reference')} record={detail.reference} />}
          {!from.live && !detail.target && !detail.reference && <div class="note">{t('Stacks and arguments are in the file for the first suspects alone: `numscope view` shows all.')}</div>}
        </div>
      </div>
    </Main>
  );
}

function firstSlot(slots: Record<string, Cell>[]): Record<string, Cell> | undefined {
  const bad = (slot: Record<string, Cell>) => slot['verdict'] === 'origin' || slot['verdict'] === 'inherited';
  const output = slots.filter((slot) => String(slot['slot']).startsWith('output'));
  return output.find(bad) ?? slots.find(bad) ?? output[0] ?? slots[0];
}

function CallFacts({ call }: { call: Record<string, Cell> }) {
  return (
    <div class="stack-y" style={{ gap: '4px' }}>
      {call['reason'] && <p style={{ maxWidth: '90ch' }}>{call['reason']}</p>}
      <p class="small quiet row" style={{ gap: '4px 14px' }}>
        {call['module'] && <a href={link('calls', [], queryOf({ module: String(call['module']) }))}>{call['module']}</a>}
        <span>{t('{0}, step {1}, rank {2}', t(String(call['phase'])), String(call['step']), String(call['rank']))}</span>
        {call['alignment'] && <span>{t('paired by {0}', t(String(call['alignment'])))}</span>}
        {call['reference_name'] && call['target_name'] && call['reference_name'] !== call['target_name'] && <span>{t('reference: {0}', String(call['reference_name']))}</span>}
        {call['error_out'] != null && (
          <span>
            {t('error in')} <b class="mono">{short(call['error_in'] as Numeric) || '—'}</b>, {t('out')} <b class="mono">{short(call['error_out'] as Numeric)}</b>
            {call['estimated'] ? ` (${t('estimated')})` : ''}
          </span>
        )}
      </p>
      {call['arguments_differ'] && (
        <p class="diff">
          {t('Arguments differ:')} <code>{call['arguments_differ']}</code>
        </p>
      )}
    </div>
  );
}

const STATISTICS = ['dtype', 'shape', 'min', 'max', 'mean', 'std', 'l2', 'nan', 'inf', 'zero'];

function SlotCards({ row, slot, detail }: { row: number; slot: Record<string, Cell>; detail: CallDetail }) {
  const from = source.value!;
  const name = String(slot['slot']);
  const [about, setAbout] = useState<TensorAbout | null>(null);
  const [worst, setWorst] = useState<Element[]>([]);
  const [fault, setFault] = useState('');
  useEffect(() => {
    if (!from.live) return;
    server.tensor(row, name).then(setAbout, (error: Error) => setFault(error.message));
  }, []);
  const data = about && (about.target || about.reference);
  useEffect(() => {
    if (data) void server.values(row, name, 'worst=1&limit=30').then((found) => setWorst(found.elements));
  }, [Boolean(data)]);
  return (
    <>
      <Statistics slot={slot} detail={detail} />
      {fault && <div class="error">{fault}</div>}
      {about && !(about.target && (about.reference || !comparing.value)) && <NotKept about={about} call={String(detail.call['target_name'] ?? detail.call['reference_name'])} />}
      {about?.sampled && <div class="note">{t('Only a sample of the tensor was kept: its pictures are of the sample, as one row.')}</div>}
      {data && <HistogramCard row={row} slot={name} />}
      {data && about.shape.every((n) => n > 0) && (
        <section class="card">
          <h2>{t('Heatmap')}</h2>
          <Heatmap row={row} slot={name} about={about} />
        </section>
      )}
      {worst.length > 0 && <Worst elements={worst} comparable={about!.comparable} />}
      {data && <Values row={row} slot={name} comparable={about.comparable} dtype={String(slot['target_dtype'] ?? slot['reference_dtype'] ?? '')} />}
    </>
  );
}

function NotKept({ about, call }: { about: TensorAbout; call: string }) {
  return (
    <div class="note" data-testid="not-kept">
      <p>
        {about.target || about.reference
          ? t('Only one side has the data of this tensor; of the other there is a fingerprint.')
          : t('Only fingerprints were kept of this tensor: the statistics are exact, the errors are the sketch’s estimates.')}
      </p>
      <p>
        {t('To see histogram, heatmap and elements, capture both runs again with')} <code>tensors=["{call}"]</code> ({t('on the command line')} <code>--tensors '{call}'</code>).
      </p>
      {Object.entries(about.missing).filter(([, why]) => !why.startsWith('only the fingerprint')).map(([side, why]) => (
        <p class="small faint" key={side}>
          {t(side)}: {why}
        </p>
      ))}
    </div>
  );
}

function Statistics({ slot, detail }: { slot: Record<string, Cell>; detail: CallDetail }) {
  const record = (side: 'target' | 'reference'): TensorRecord | null => detail[side]?.slots.find((item) => item.slot === slot['slot'])?.tensor ?? null;
  const two = comparing.value;
  const sides = two ? (['target', 'reference'] as const) : (['target'] as const);
  const value = (side: string, name: string): Cell => slot[`${side}_${name}`] ?? null;
  const show = (cell: Cell) => (typeof cell === 'string' && !/^(nan|-?inf)$/.test(cell) ? cell : <span title={exact(cell as Numeric)}>{short(cell as Numeric) || '—'}</span>);
  const gap = (name: string): string => {
    const [a, b] = [number(value('target', name) as Numeric), number(value('reference', name) as Numeric)];
    return a === null || b === null || Number.isNaN(a - b) ? '' : a === b ? '0' : short(a - b);
  };
  const rows = STATISTICS.filter((name) => sides.some((side) => value(side, name) !== null));
  const hashes = sides.map((side) => record(side)?.hash ?? null);
  return (
    <section class="card" data-testid="statistics">
      <h2>{t('Statistics')}</h2>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th />
              {sides.map((side) => (
                <th key={side} class="number">
                  {t(side === 'target' ? (two ? 'Target' : 'Run') : 'Reference')}
                </th>
              ))}
              {two && <th class="number">{t('difference')}</th>}
            </tr>
          </thead>
          <tbody>
            {rows.map((name) => {
              const different = two && String(value('target', name)) !== String(value('reference', name));
              return (
                <tr key={name}>
                  <th>{t(name)}</th>
                  {sides.map((side) => (
                    <td key={side} class={`number ${different && (name === 'dtype' || name === 'shape' || name === 'nan' || name === 'inf') ? 'diff' : ''}`}>
                      {show(value(side, name))}
                    </td>
                  ))}
                  {two && <td class="number">{name === 'dtype' || name === 'shape' ? (different ? '≠' : '') : gap(name)}</td>}
                </tr>
              );
            })}
            {hashes.some(Boolean) && (
              <tr>
                <th>{t('hash')}</th>
                {hashes.map((hash, i) => (
                  <td key={i} class="number">
                    {hash ?? '—'}
                  </td>
                ))}
                {two && <td class="number">{hashes[0] && hashes[0] === hashes[1] ? '=' : '≠'}</td>}
              </tr>
            )}
          </tbody>
        </table>
      </div>
      {!two && slot['headroom'] !== null && slot['headroom'] !== undefined && (
        <p class="small quiet" style={{ marginTop: '8px' }}>
          {t('Headroom: {0} doublings below the largest {1}.', short(slot['headroom'] as Numeric), String(slot['target_dtype']))}
        </p>
      )}
    </section>
  );
}

const ERRORS: [string, string][] = [
  ['relative_l2', 'relative L2'],
  ['expected', 'rounding explains'],
  ['cosine', 'cosine'],
  ['rmse', 'RMSE'],
  ['mape', 'MAPE'],
  ['max_abs_err', 'max abs error'],
  ['max_rel_err', 'max rel error'],
  ['euclid', 'Euclidean'],
  ['bias', 'bias'],
  ['ulp_median', 'ULP, median'],
  ['ulp_p99', 'ULP, 99 %'],
  ['ulp_max', 'ULP, largest'],
  ['within_0_1_percent', 'within 0.1 %'],
  ['within_0_5_percent', 'within 0.5 %'],
  ['mismatch_share', 'outside torch’s tolerance'],
  ['structure', 'structure'],
  ['first_index', 'first at'],
  ['worst_index', 'worst at'],
];

function Errors({ slot }: { slot: Record<string, Cell> }) {
  const known = ERRORS.filter(([name]) => slot[name] !== null && slot[name] !== undefined && slot[name] !== '');
  return (
    <section class="card" data-testid="errors">
      <h2>
        {t('Error')} {slot['estimated'] ? `(${t('estimated')})` : ''}
      </h2>
      <div class="row" style={{ marginBottom: '8px' }}>
        <Badge word={slot['verdict']} pill />
        <span class="small quiet">{slot['reason']}</span>
      </div>
      <dl class="facts">
        {slot['bitwise_equal'] !== null && (
          <>
            <dt>{t('bitwise equal')}</dt>
            <dd>{slot['bitwise_equal'] ? t('yes') : t('no')}</dd>
          </>
        )}
        {known.map(([name, title]) => (
          <>
            <dt>{t(title)}</dt>
            <dd class="mono" title={exact(slot[name] as Numeric)}>
              {typeof slot[name] === 'string' && number(slot[name]) === null ? slot[name] : short(slot[name] as Numeric)}
            </dd>
          </>
        ))}
      </dl>
    </section>
  );
}

function Arguments({ detail }: { detail: CallDetail }) {
  const sides = ([['target', detail.target], ['reference', detail.reference]] as const).filter(([, record]) => record?.arguments);
  if (!sides.length) return null;
  const flat = sides.map(([side, record]) => [side, flatten(record!.arguments)] as const);
  const names = [...new Set(flat.flatMap(([, values]) => Object.keys(values)))];
  return (
    <section class="card" data-testid="arguments">
      <h2>{t('Arguments that are not tensors')}</h2>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th />
              {flat.map(([side]) => (
                <th key={side}>{t(side === 'target' ? (comparing.value ? 'Target' : 'Run') : 'Reference')}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {names.map((name) => {
              const values = flat.map(([, all]) => all[name]);
              const different = values.length > 1 && values[0] !== values[1];
              return (
                <tr key={name}>
                  <th>{name}</th>
                  {values.map((value, i) => (
                    <td key={i} class={different ? 'diff' : ''}>
                      {value ?? '—'}
                    </td>
                  ))}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function flatten(value: unknown, prefix = ''): Record<string, string> {
  if (value === null || typeof value !== 'object' || Array.isArray(value)) return { [prefix || 'value']: JSON.stringify(value) };
  const all: Record<string, string> = {};
  for (const [name, item] of Object.entries(value)) {
    const path = prefix === '' && (name === 'args' || name === 'kwargs') ? '' : prefix ? `${prefix}.${name}` : name;
    if (item !== null && typeof item === 'object' && !Array.isArray(item)) Object.assign(all, flatten(item, path));
    else all[path || name] = JSON.stringify(item);
  }
  return all;
}

function StackCard({ title, record }: { title: string; record?: CallRecord | null }) {
  if (!record?.frames.length) return null;
  return (
    <section class="card" data-testid="stack">
      <h2>{title}</h2>
      <Stack frames={record.frames} user={record.user_frame} />
    </section>
  );
}

function HistogramCard({ row, slot }: { row: number; slot: string }) {
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

export function Worst({ elements, comparable }: { elements: Element[]; comparable: boolean }) {
  return (
    <section class="card" data-testid="worst">
      <h2>{comparable ? t('Worst elements') : t('Largest elements')}</h2>
      <div class="scroll" style={{ maxHeight: '320px' }}>
        <table class="plain">
          <thead>
            <tr>
              <th>{t('index')}</th>
              {elements[0]!.target !== undefined && <th class="number">{t('target')}</th>}
              {elements[0]!.reference !== undefined && <th class="number">{t('reference')}</th>}
              {comparable && (
                <>
                  <th class="number">{t('difference')}</th>
                  <th class="number">{t('relative')}</th>
                  <th class="number">ULP</th>
                </>
              )}
            </tr>
          </thead>
          <tbody>
            {elements.map((element) => (
              <tr key={element.flat}>
                <td>[{element.index.join(', ')}]</td>
                {element.target !== undefined && <td class="number" title={exact(element.target)}>{short(element.target)}</td>}
                {element.reference !== undefined && <td class="number" title={exact(element.reference)}>{short(element.reference)}</td>}
                {comparable && (
                  <>
                    <td class="number">{short(element.difference)}</td>
                    <td class="number">{short(element.relative)}</td>
                    <td class="number">{short(element.ulp)}</td>
                  </>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
