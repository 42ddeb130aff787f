import { useEffect, useRef, useState } from 'preact/hooks';
import { Main } from '../app';
import { count, short } from '../data/format';
import { cell, type Cell } from '../data/frame';
import type { Heat } from '../data/types';
import { viewOf } from '../data/view';
import { say, t } from '../i18n';
import { Plot } from '../parts/plot';
import { points, type Points } from '../parts/points';
import { go, link, route, setQuery } from '../route';
import { comparing, source, summary, theme } from '../state';
import { Badge, GLYPH, VERDICTS, verdictClass } from '../verdict';

export function Story() {
  const from = source.value!;
  const about = summary.value!;
  const query = route.value.query;
  const view = viewOf(query);
  const key = `${view.step.join()}|${view.rank.join()}|${about.version}`;
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<Plot | null>(null);
  const data = useRef<Points | null>(null);
  const loaded = useRef({ start: 0, end: 0, all: true });
  const [inputs, setInputs] = useState(false);
  const [expected, setExpected] = useState(true);
  const [tip, setTip] = useState<{ index: number; left: number; top: number } | null>(null);
  const [fault, setFault] = useState('');
  const [total, setTotal] = useState(0);
  const shade = theme.value;

  useEffect(() => {
    let gone = false;
    const zoom = (start: number, end: number) => {
      setTip(null);
      setQuery({ zoom: end > start ? `${Math.round(start)}-${Math.round(end)}` : null });
      const p = data.current!;
      if (loaded.current.all && p.at.length >= p.total) return;
      void load(Math.floor(Math.max(start, 0)), Math.ceil(end));
    };
    const load = async (start: number, end: number) => {
      const frame = await from.story(view, start, end);
      if (gone) return;
      data.current = points(frame);
      loaded.current = { start, end, all: frame.rows >= data.current.total };
      setTotal(data.current.total);
      if (plot.current) plot.current.show(data.current, { inputs, expected });
    };
    const begin = async () => {
      await load(0, 0);
      if (gone || !host.current) return;
      plot.current?.destroy();
      plot.current = new Plot(host.current, data.current!, { inputs, expected }, {
        hover: (index, left, top) => setTip({ index, left, top }),
        leave: () => setTip(null),
        click: (index) => go(link('tensor', [data.current!.row[index]!])),
        zoom,
      });
      const match = /^(-?\d+)-(\d+)$/.exec(query.get('zoom') ?? '');
      if (match) plot.current.zoomTo(Number(match[1]), Number(match[2]));
    };
    begin().catch((error: Error) => setFault(error.message));
    const observer = new ResizeObserver(() => plot.current?.resize());
    observer.observe(host.current!);
    return () => {
      gone = true;
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [key, shade]);
  useEffect(() => {
    if (plot.current && data.current) plot.current.show(data.current, { inputs, expected });
  }, [inputs, expected]);

  const words = comparing.value ? VERDICTS : (['origin', 'inherited'] as const);
  return (
    <Main>
      <div class="row">
        <div class="legend" style={{ margin: 0 }}>
          {words.map((word) => (
            <span key={word} class={`badge ${verdictClass(word)}`}>
              <i aria-hidden="true">{GLYPH[word]}</i>
              {t(word)}
            </span>
          ))}
        </div>
        <span class="grow" />
        <label class="check">
          <input type="checkbox" checked={inputs} onChange={(e) => setInputs(e.currentTarget.checked)} />
          {comparing.value ? t('error in') : t('inputs')}
        </label>
        <label class="check">
          <input type="checkbox" checked={expected} onChange={(e) => setExpected(e.currentTarget.checked)} />
          {comparing.value ? t('what rounding explains') : t('largest of the dtype')}
        </label>
        <button class="button" onClick={() => plot.current?.zoomTo(0, total - 1)}>
          {t('Whole run')}
        </button>
      </div>
      {fault && <div class="error">{fault}</div>}
      <section class="card" style={{ padding: '10px 12px 4px' }}>
        <div class="plot" ref={host} data-testid="plot" data-points={total}>
          {tip && data.current && <Tip data={data.current} tip={tip} width={host.current!.clientWidth} />}
        </div>
      </section>
      <p class="small quiet">
        {comparing.value
          ? t('Relative error of each call’s output over the order of calls ({0} calls). Drag or turn the wheel to zoom, double-click for the whole, click a point to open the call.', count(total))
          : t('Largest absolute value of each call’s output over the order of calls ({0} calls). Drag or turn the wheel to zoom, double-click for the whole, click a point to open the call.', count(total))}
      </p>
      <HeatChoice step={view.step[0]} rank={view.rank[0]} />
    </Main>
  );
}

function Tip({ data, tip, width }: { data: Points; tip: { index: number; left: number; top: number }; width: number }) {
  const from = source.value!;
  const row = data.row[tip.index]!;
  const [names, setNames] = useState<{ row: number; name: Cell; module: Cell; reason: Cell } | null>(null);
  useEffect(() => {
    let gone = false;
    const timer = setTimeout(async () => {
      const wanted = ['target_name', 'reference_name', 'module', 'reason'].filter((name) => summary.peek()!.tables.calls.columns.includes(name));
      const whole = viewOf(new URLSearchParams());
      const frame = from.live ? await from.rows(whole, row, 1, wanted) : await oneRow(row, wanted);
      if (gone || !frame) return;
      const get = (name: string) => cell(frame.columns.get(name), 0);
      setNames({ row, name: get('target_name') ?? get('reference_name'), module: get('module'), reason: get('reason') });
    }, 40);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [row]);
  const code = data.code[tip.index]!;
  const left = tip.left > width - 380 ? { right: `${width - tip.left + 14}px` } : { left: `${tip.left + 14}px` };
  return (
    <div class="tip" style={{ top: `${Math.max(4, tip.top - 20)}px`, ...left }} data-testid="tip">
      <div class="row">
        <Badge word={code >= 0 ? data.verdict[code] : ''} />
        <span class="quiet">
          {t('step')} {data.step[tip.index]}
        </span>
      </div>
      <div class="mono">{names?.row === row ? names.name : '…'}</div>
      {names?.row === row && names.module && <div class="quiet">{names.module}</div>}
      <div>
        {t('in')} <b class="mono">{Number.isNaN(data.into[tip.index]!) ? '—' : short(data.rawIn[tip.index]!)}</b> → {t('out')}{' '}
        <b class="mono">{Number.isNaN(data.out[tip.index]!) ? '—' : short(data.raw[tip.index]!)}</b>
      </div>
      {names?.row === row && names.reason && <div class="quiet">{say(names.reason)}</div>}
    </div>
  );
}

async function oneRow(row: number, wanted: string[]) {
  const from = source.peek()!;
  const whole = viewOf(new URLSearchParams());
  const position = await from.position(whole, row);
  return position < 0 ? null : from.rows(whole, position, 1, wanted);
}

function HeatChoice({ step, rank }: { step?: string; rank?: string }) {
  const [heat, setHeat] = useState<Heat | null>(null);
  const version = summary.value!.version;
  useEffect(() => void source.value!.heat().then(setHeat), [version]);
  if (!heat || heat.steps.length * heat.ranks.length <= 1) return null;
  const choose = (s: number, r: number) => {
    const same = step === String(s) && rank === String(r);
    setQuery({ step: same ? null : String(s), rank: same ? null : String(r), zoom: null });
  };
  return (
    <section class="card">
      <h2>
        {t('Ranks and steps')}
        {step !== undefined && (
          <button class="tool small" onClick={() => setQuery({ step: null, rank: null, zoom: null })}>
            {t('show all')}
          </button>
        )}
      </h2>
      <div class="scroll">
        <div class="heat" style={{ gridTemplateColumns: `max-content repeat(${heat.steps.length}, minmax(14px, 28px))` }} data-testid="heat">
          {heat.ranks.map((r, i) => (
            <>
              <span key={`r${r}`}>
                {t('rank')} {r}
              </span>
              {heat.steps.map((s, j) => {
                const word = heat.verdict[i]![j];
                const text = `${t('rank')} ${r}, ${t('step')} ${s}: ${word ? t(word) : t('finite')}, ${count(heat.calls[i]![j]!)} ${t('calls')}, ${short(heat.error[i]![j])}`;
                return (
                  <button
                    key={`${r}/${s}`}
                    class={verdictClass(word)}
                    aria-pressed={step === String(s) && rank === String(r)}
                    aria-label={text}
                    title={text}
                    onClick={() => choose(s, r)}
                  >
                    {word ? GLYPH[word] : ''}
                  </button>
                );
              })}
            </>
          ))}
        </div>
      </div>
    </section>
  );
}
