import { useEffect, useState } from 'preact/hooks';
import { Main } from '../app';
import { short, type Numeric } from '../data/format';
import type { Cell } from '../data/frame';
import { server } from '../data/source';
import type { CallDetail, CallRecord, Element, TensorAbout } from '../data/types';
import { queryOf } from '../data/view';
import { t } from '../i18n';
import { Arguments } from '../parts/arguments';
import { Heatmap } from '../parts/heatmap';
import { HistogramCard } from '../parts/histogram';
import { Errors, Statistics, Worst } from '../parts/measured';
import { OnRanks } from '../parts/ranks';
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
  const lone = comparing.value && !(call['target_name'] && call['reference_name']) ? (call['target_name'] ? 'target' : 'reference') : null;
  const slots = lone && !detail.slots.length ? ownSlots(detail, lone) : detail.slots;
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
          {lone && <div class="note" data-testid="lone">{t(lone === 'target' ? 'Only the target has this call: there is nothing to compare it with.' : 'Only the reference has this call: there is nothing to compare it with.')}</div>}
          {chosen ? <SlotCards key={`${row}/${chosen['slot']}`} row={row} slot={chosen} detail={detail} lone={lone} /> : !lone && <div class="note">{t('This call has no tensors.')}</div>}
        </div>
        <div class="stack-y">
          {chosen && comparing.value && !lone && <Errors slot={chosen} />}
          {chosen && <OnRanks call={call} slot={chosen} />}
          <Arguments detail={detail} />
          <StackCard title={comparing.value ? t('Stack of the target') : t('Call stack')} record={detail.target} />
          {comparing.value && !detail.target?.frames.length && <StackCard title={t('Stack of the reference')} record={detail.reference} />}
          {!from.live && !detail.target && !detail.reference && <div class="note">{t('Stacks and arguments are in the file for the first suspects alone: `numscope view` shows all.')}</div>}
        </div>
      </div>
    </Main>
  );
}

/** The slots of a call that one run alone has, in the shape of the slots of a pair. */
export function ownSlots(detail: CallDetail, side: 'target' | 'reference'): Record<string, Cell>[] {
  return (detail[side]?.slots ?? []).map(({ slot, tensor }) => {
    const known: Record<string, Cell> = { slot };
    if (tensor) {
      const { dtype, min, max, mean, l2, nan, zero } = tensor;
      const facts = { dtype, shape: `[${tensor.shape.join(', ')}]`, min, max, mean, l2, nan, inf: tensor.posinf + tensor.neginf, zero };
      for (const [name, value] of Object.entries(facts)) known[`${side}_${name}`] = value ?? null;
    }
    return known;
  });
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

function SlotCards({ row, slot, detail, lone }: { row: number; slot: Record<string, Cell>; detail: CallDetail; lone: 'target' | 'reference' | null }) {
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
      <Statistics slot={slot} detail={detail} lone={lone} />
      {fault && <div class="error">{fault}</div>}
      {about && !(lone ? about[lone] : about.target && (about.reference || !comparing.value)) && <NotKept about={about} call={String(detail.call['target_name'] ?? detail.call['reference_name'])} />}
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

function StackCard({ title, record }: { title: string; record?: CallRecord | null }) {
  if (!record?.frames.length) return null;
  return (
    <section class="card" data-testid="stack">
      <h2>{title}</h2>
      <Stack frames={record.frames} user={record.user_frame} />
    </section>
  );
}
