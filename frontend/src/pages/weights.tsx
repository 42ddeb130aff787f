import { useMemo, useState } from 'preact/hooks';
import { Main } from '../app';
import type { WeightsAnswer, WeightsPair } from '../data/documents';
import { count, ratio, short } from '../data/format';
import { say, t } from '../i18n';
import { size, firstOpen, gridOf, leavesOf, linesOf, MARKS, treeOf, worstOf, type Branch, type Leaf, type Line, type Mark } from '../model/weights';
import { route, setQuery } from '../route';

const TITLE: Record<WeightsAnswer['verdict'], string> = {
  identical: 'These are the same weights, to the bit.',
  equivalent: 'These are the same weights, within what a conversion explains.',
  diverged: 'These are not the same weights.',
  incomplete: 'Nothing is wrong in what both have, but not all is in both.',
};
const COLOUR: Record<Mark, string> = {
  identical: 'identical',
  equivalent: 'equivalent',
  diverged: 'origin',
  incomplete: 'inherited',
  missing: 'unmatched',
  extra: 'unmatched',
};
const GLYPH: Record<Mark, string> = { identical: '=', equivalent: '≈', diverged: '✱', incomplete: '?', missing: '−', extra: '+' };
const RELATION: Record<string, string> = {
  equal: '=',
  cast: '≈',
  transposed: '⟂',
  fused: '⊃',
  split: '⊂',
  interleaved: '≋',
  padded: '▯',
  tied: '∞',
  scaled: '×',
  merged: '⊕',
  quantised: '#',
  none: '✱',
  missing: '−',
  extra: '+',
};
// A fault's name in the answer, and how a person reads it.
const FAULT: Record<string, string> = {
  zero: 'all zero',
  initialisation: 'never loaded',
  swapped: 'swapped',
  order: 'wrong order',
  expert: 'another expert',
  transposed: 'transposed',
  layer: 'another layer',
  stale: 'stale',
  dtype: 'through another dtype',
  scale: 'wrong scale',
  slice: 'a slice',
  bit: 'a bit',
  'non-finite': 'non-finite',
  values: 'other values',
  shape: 'no relation',
};
const SIZES = ['the same bits', 'up to 1e-5', 'up to 0.01', 'up to 0.5', 'more'];
const MODES = ['verdict', 'relation', 'error'] as const;
type Mode = (typeof MODES)[number];
const MOST = 400; // lines of the tree that are drawn at once

interface Look {
  tone: string;
  glyph: string;
}

/** The colour and the glyph of a tensor, by what the reader chose to see. */
function look(mode: Mode, mark: Mark, relation: string, relative: number | null): Look {
  if (mode === 'relation') return { tone: `r-${relation || mark}`, glyph: RELATION[relation || mark] ?? '' };
  if (mode === 'error' && mark !== 'missing' && mark !== 'extra') return { tone: `e-${size(relative)}`, glyph: '' };
  return { tone: `v-${COLOUR[mark]}`, glyph: GLYPH[mark] };
}

export function Weights({ answer }: { answer: WeightsAnswer }) {
  const leaves = useMemo(() => leavesOf(answer), [answer]);
  const root = useMemo(() => treeOf(leaves), [leaves]);
  const query = route.value.query;
  const mode = (MODES as readonly string[]).includes(query.get('colour') ?? '') ? (query.get('colour') as Mode) : 'verdict';
  const chosen = leaves.find((leaf) => leaf.name === query.get('tensor')) ?? null;
  const choose = (name: string) => setQuery({ tensor: name });
  const title = answer.verdict === 'diverged' ? 'origin' : answer.verdict === 'incomplete' ? 'unmatched' : answer.verdict;
  return (
    <Main>
      <section class={`card verdict v-${title}`} data-testid="verdict">
        <h1>{t(TITLE[answer.verdict])}</h1>
        <p class="as-is">{answer.verdict === 'diverged' ? <Shortly answer={answer} /> : say(answer.reason)}</p>
        {answer.shown && (
          <p class="small faint" data-testid="cap">
            {t('This file holds {0} of {1} pairs: those that matter most. `numscope weights --json` has all.', count(answer.shown.pairs), count(answer.shown.of_pairs))}
          </p>
        )}
      </section>
      <div class="row">
        <span class="segments" role="group" aria-label={t('Colour')}>
          {MODES.map((name) => (
            <button key={name} aria-pressed={name === mode} onClick={() => setQuery({ colour: name === 'verdict' ? null : name })}>
              {t(name)}
            </button>
          ))}
        </span>
        <Legend root={root} leaves={leaves} mode={mode} />
      </div>
      <div class="columns">
        <div class="stack-y">
          <LayerMap leaves={leaves} mode={mode} chosen={chosen} choose={choose} />
          <Tree root={root} mode={mode} chosen={chosen} choose={choose} />
        </div>
        <div class="stack-y">
          {chosen && <About leaf={chosen} />}
          <Wrong answer={answer} choose={choose} />
          <Lacking title={t('Missing in A')} names={answer.missing} unjudged={answer.unjudged} choose={choose} />
          <Lacking title={t('Extra in A')} names={answer.extra} unjudged={answer.unjudged} choose={choose} />
        </div>
      </div>
    </Main>
  );
}

/** How many are right, and the first that is not. */
function Shortly({ answer }: { answer: WeightsAnswer }) {
  const tensors = (pairs: WeightsPair[]) => pairs.reduce((sum, pair) => sum + pair.b.length, 0);
  const total = tensors(answer.pairs) + answer.missing.length;
  const wrong = answer.pairs.filter((pair) => pair.verdict === 'diverged');
  const right = total - answer.missing.length - tensors(wrong);
  const first = wrong[0]!;
  return (
    <>
      {t('{0} of {1} tensors of B are right ({2}).', count(right), count(total), ratio(right, total))} <code>{first.b[0]}</code>: {say(first.reason)}
    </>
  );
}

function Legend({ root, leaves, mode }: { root: Branch; leaves: Leaf[]; mode: Mode }) {
  const entries: { look: Look; word: string; number: number }[] = [];
  if (mode === 'relation') {
    for (const name of Object.keys(RELATION)) {
      const number = root.relations.get(name) ?? 0;
      if (number) entries.push({ look: { tone: `r-${name}`, glyph: RELATION[name]! }, word: t(name), number });
    }
  } else if (mode === 'error') {
    const numbers = [0, 0, 0, 0, 0];
    for (const leaf of leaves) if (leaf.pair) numbers[size(leaf.relative)]!++;
    numbers.forEach((number, i) => number && entries.push({ look: { tone: `e-${i}`, glyph: '' }, word: t(SIZES[i]!), number }));
  } else {
    for (const mark of MARKS) {
      const number = root.marks.get(mark) ?? 0;
      if (number) entries.push({ look: look(mode, mark, '', null), word: t(mark), number });
    }
  }
  return (
    <span class="legend keyed" data-testid="legend">
      {entries.map((entry) => (
        <span key={entry.word} class={`badge ${entry.look.tone}`}>
          <i class="swab" aria-hidden="true">
            {entry.look.glyph}
          </i>
          {entry.word} <b>{count(entry.number)}</b>
        </span>
      ))}
    </span>
  );
}

interface Choosing {
  mode: Mode;
  chosen: Leaf | null;
  choose: (name: string) => void;
}

/** All layers at a glance: a column each, a row for each role. */
function LayerMap({ leaves, mode, chosen, choose }: { leaves: Leaf[] } & Choosing) {
  const grid = useMemo(() => gridOf(leaves), [leaves]);
  if (grid.layers.length < 2 || grid.rows.length > 80) return null;
  return (
    <section class="card" data-testid="map">
      <h2>{t('Layers')}</h2>
      <div class="scroll">
        <div class="layers" style={{ gridTemplateColumns: `max-content repeat(${grid.layers.length}, minmax(13px, 26px))` }}>
          <span />
          {grid.layers.map((layer, i) => (
            <span class="number" key={layer}>
              {i % Math.ceil(grid.layers.length / 24) === 0 ? layer : ''}
            </span>
          ))}
          {grid.rows.map((row) => (
            <>
              <span class="mono" title={row.role}>
                {row.role.replace(/\.(weight|kernel)$/, '')}
              </span>
              {row.cells.map((cell, i) => {
                if (!cell) return <span key={i} />;
                const worst = worstOf(cell);
                const shown = look(mode, worst.mark, worst.relation, worst.relative);
                return (
                  <button
                    key={i}
                    class={`cell ${shown.tone}`}
                    aria-pressed={chosen !== null && cell.includes(chosen)}
                    title={`${worst.name}${cell.length > 1 ? ` (+${cell.length - 1})` : ''}\n${t(worst.mark)}${worst.relation ? `, ${t(worst.relation)}` : ''}${worst.relative ? `, ${short(worst.relative)}` : ''}`}
                    onClick={() => choose(worst.name)}
                  >
                    {worst.mark === 'identical' && mode === 'verdict' ? '' : shown.glyph}
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

function Tree({ root, mode, chosen, choose }: { root: Branch } & Choosing) {
  const [open, setOpen] = useState(() => firstOpen(root));
  const [text, setText] = useState('');
  const [only, setOnly] = useState<Mark | ''>('');
  const [most, setMost] = useState(MOST);
  const wanted = (leaf: Leaf) =>
    (!only || leaf.mark === only) && (!text || leaf.name.toLowerCase().includes(text) || (leaf.pair?.a.some((name) => name.toLowerCase().includes(text)) ?? false));
  const lines = useMemo(
    () => linesOf(root, (path) => Boolean(text || only) || open.has(path), wanted),
    [root, open, text, only],
  );
  const toggle = (path: string) => {
    const next = new Set(open);
    if (!next.delete(path)) next.add(path);
    setOpen(next);
  };
  return (
    <section class="card" data-testid="tree">
      <h2>{t('Tensors')}</h2>
      <div class="filters">
        <span class="search">
          <input type="search" aria-label={t('Name')} placeholder={t('Name')} value={text} onInput={(event) => (setText(event.currentTarget.value.toLowerCase()), setMost(MOST))} />
        </span>
        {MARKS.filter((mark) => root.marks.get(mark)).map((mark) => (
          <button key={mark} class={`chip v-${COLOUR[mark]}`} aria-pressed={only === mark} onClick={() => setOnly(only === mark ? '' : mark)}>
            <span class="badge">
              <i aria-hidden="true">{GLYPH[mark]}</i>
              {t(mark)}
            </span>
          </button>
        ))}
      </div>
      <div class="weights-tree" role="tree">
        {lines.slice(0, most).map((line) => (
          <TreeLine key={line.node.path} line={line} mode={mode} open={Boolean(text || only) || open.has(line.node.path)} on={chosen?.name === line.node.leaf?.name && chosen !== null} toggle={toggle} choose={choose} />
        ))}
        {lines.length === 0 && <p class="quiet">{t('No row passes these filters.')}</p>}
      </div>
      {lines.length > most && (
        <button class="button" onClick={() => setMost(most + MOST)}>
          {t('{0} more', count(lines.length - most))}
        </button>
      )}
    </section>
  );
}

interface LineProps {
  line: Line;
  mode: Mode;
  open: boolean;
  on: boolean;
  toggle: (path: string) => void;
  choose: (name: string) => void;
}

function TreeLine({ line: { node, depth }, mode, open, on, toggle, choose }: LineProps) {
  const group = node.branches.length > 0;
  const leaf = node.leaf;
  const shown = look(mode, node.mark, leaf?.relation ?? '', node.relative);
  const press = () => (leaf ? choose(leaf.name) : toggle(node.path));
  return (
    <div
      class={`twig ${group && mode === 'relation' ? 'v-none' : shown.tone} ${on ? 'on' : ''}`}
      role="treeitem"
      aria-level={depth + 1}
      aria-expanded={group ? open : undefined}
      aria-selected={on}
      tabindex={0}
      onClick={press}
      onKeyDown={(event) => {
        if (event.key !== 'Enter' && event.key !== ' ') return;
        event.preventDefault();
        press();
      }}
    >
      <span class="mono name" style={{ paddingLeft: `${depth * 16}px` }} title={node.path}>
        <i class="fold" aria-hidden="true">
          {group ? (open ? '▾' : '▸') : ''}
        </i>
        {node.label}
        {group && <span class="faint"> {count(node.leaves)}</span>}
      </span>
      <span class="strip" aria-hidden="true">
        {group ? <Strip node={node} mode={mode} /> : <i class={shown.tone} />}
      </span>
      <span class={`badge v-${COLOUR[node.mark]}`}>
        <i aria-hidden="true">{GLYPH[node.mark]}</i>
        {t(node.mark)}
      </span>
      <span class="small quiet">{leaf?.relation ? t(leaf.relation) : ''}</span>
      <span class="mono small number">{node.relative ? short(node.relative) : ''}</span>
    </div>
  );
}

/** What is inside, by share. */
function Strip({ node, mode }: { node: Branch; mode: Mode }) {
  if (mode === 'error') return <i class={`e-${size(node.relative)}`} />;
  const shares = mode === 'relation' ? node.relations : node.marks;
  return (
    <>
      {[...shares].map(([name, number]) => (
        <i key={name} class={mode === 'relation' ? `r-${name}` : `v-${COLOUR[name as Mark]}`} style={{ flexGrow: number }} />
      ))}
    </>
  );
}

function About({ leaf }: { leaf: Leaf }) {
  const pair = leaf.pair;
  return (
    <section class={`card v-${COLOUR[leaf.mark]}`} data-testid="about">
      <div class="title-row">
        <h1>{leaf.name}</h1>
        <span class="badge pill">
          <i aria-hidden="true">{GLYPH[leaf.mark]}</i>
          {t(leaf.mark)}
        </span>
      </div>
      {!pair && <p class="said">{leaf.mark === 'missing' ? t('B has it, and A does not.') : t('A has it, and B does not.')}</p>}
      {pair && (
        <>
          <p class="said">{say(pair.reason)}</p>
          <dl class="facts">
            <dt>{t('relation')}</dt>
            <dd>{t(pair.relation)}</dd>
            {pair.relative !== null && (
              <>
                <dt>{t('error')}</dt>
                <dd class="mono">{short(pair.relative)}</dd>
              </>
            )}
            <Side title="A" pair={pair} side="a" />
            <Side title="B" pair={pair} side="b" />
          </dl>
          {pair.repair && (
            <p class="repair">
              <b>{t('Repair')}</b> {say(pair.repair)}
            </p>
          )}
          {(pair.explain ?? []).length > 0 && (
            <ul class="small quiet">
              {pair.explain!.map((sentence) => (
                <li key={sentence}>{say(sentence)}</li>
              ))}
            </ul>
          )}
        </>
      )}
    </section>
  );
}

const LISTED = 12; // tensors of a pair that are named one by one

function Side({ title, pair, side }: { title: string; pair: WeightsPair; side: 'a' | 'b' }) {
  const about = new Map((pair.tensors?.[side] ?? []).map((tensor) => [tensor.name, tensor]));
  const names = pair[side];
  return (
    <>
      <dt>{title}</dt>
      <dd>
        {names.slice(0, LISTED).map((name) => {
          const tensor = about.get(name);
          return (
            <div key={name}>
              <span class="mono">{name}</span>
              {tensor && (
                <span class="small quiet">
                  {' '}
                  {tensor.dtype} [{tensor.shape.join(', ')}]
                </span>
              )}
            </div>
          );
        })}
        {names.length > LISTED && <div class="quiet">{t('{0} more', count(names.length - LISTED))}</div>}
      </dd>
    </>
  );
}

function Wrong({ answer, choose }: { answer: WeightsAnswer; choose: (name: string) => void }) {
  const wrong = answer.pairs.filter((pair) => pair.fault);
  return (
    <section class="card" data-testid="wrong">
      <h2>{t('What is wrong')}</h2>
      {!wrong.length && <p class="quiet">{answer.missing.length || answer.extra.length ? t('Nothing in what both have.') : t('Nothing.')}</p>}
      <div class="list">
        {wrong.slice(0, 40).map((pair) => (
          <div key={pair.b.join()} class={`v-${pair.verdict === 'diverged' ? 'origin' : 'equivalent'}`}>
            <div class="row">
              <span class="badge pill">{t(FAULT[pair.fault!] ?? pair.fault!)}</span>
              <button class="linked mono wrap grow" onClick={() => choose(pair.b[0]!)}>
                {pair.b[0]}
              </button>
            </div>
            <div class="small quiet">{say(pair.reason)}</div>
            {pair.repair && <div class="small">{say(pair.repair)}</div>}
          </div>
        ))}
      </div>
      {wrong.length > 40 && <p class="quiet small">{t('{0} more', count(wrong.length - 40))}</p>}
    </section>
  );
}

function Lacking({ title, names, unjudged, choose }: { title: string; names: string[]; unjudged: string[]; choose: (name: string) => void }) {
  if (!names.length) return null;
  return (
    <section class="card v-unmatched">
      <h2>
        {title} <span class="faint">{count(names.length)}</span>
      </h2>
      <div class="list">
        {names.slice(0, 30).map((name) => (
          <div key={name} class="row">
            <button class="linked mono wrap grow" onClick={() => choose(name)}>
              {name}
            </button>
            {unjudged.includes(name) && <span class="small quiet">{t('each model makes it anew')}</span>}
          </div>
        ))}
      </div>
      {names.length > 30 && <p class="quiet small">{t('{0} more', count(names.length - 30))}</p>}
    </section>
  );
}
