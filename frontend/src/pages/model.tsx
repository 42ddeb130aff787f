import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { Main } from '../app';
import { count, tail } from '../data/format';
import { cell } from '../data/frame';
import { server } from '../data/source';
import { viewOf } from '../data/view';
import { t } from '../i18n';
import { caption, Scene, type Box } from '../model/scene';
import { go, link, route, setQuery } from '../route';
import { comparing, source, summary } from '../state';
import { GLYPH, isVerdict, verdictClass } from '../verdict';

interface Camera {
  x: number;
  y: number;
  k: number;
}

export function Model() {
  const about = summary.value!;
  const query = route.value.query;
  const facets = about.tables.calls.facets;
  const origin = about.origin_row;
  const row = query.get('row') ?? (query.has('step') || origin === null ? null : String(origin));
  const [place, setPlace] = useState({
    step: Number(query.get('step') ?? facets['step']?.[0] ?? 0),
    rank: Number(query.get('rank') ?? facets['rank']?.[0] ?? 0),
    phase: query.get('phase') ?? 'forward',
  });
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const [root, setRoot] = useState<Box | null>(null);
  const [camera, setCamera] = useState<Camera>({ x: 20, y: 40, k: 1 });
  const [fault, setFault] = useState('');
  const [lit, setLit] = useState<string>('');
  const [found, setFound] = useState('');
  const panes = useRef<HTMLDivElement>(null);
  const fitted = useRef('');
  const scene = useMemo(() => new Scene(place.step, place.rank, place.phase), [place.step, place.rank, place.phase, about.version]);

  // The row that was asked for, else the origin: open the groups around it.
  const reveal = (wanted: string) => {
    server.path(Number(wanted)).then(
      (found) => {
        fitted.current = '';
        setPlace({ step: found.step, rank: found.rank, phase: found.phase });
        setOpen(new Set(found.groups));
        setLit(`r${wanted}`);
      },
      (error: Error) => setFault(error.message),
    );
  };
  useEffect(() => {
    if (row !== null) reveal(row);
  }, [row]);

  useEffect(() => {
    let gone = false;
    scene.build(open).then(
      (box) => {
        if (gone) return;
        setRoot(box);
        setFault('');
        const view = `${place.step}/${place.rank}/${place.phase}/${row}`;
        if (fitted.current !== view && (row === null || open.size > 0)) {
          fitted.current = view;
          setCamera(fit(box, panes.current!, lit || (row === null ? '' : `r${row}`)));
        }
      },
      (error: Error) => !gone && setFault(error.message),
    );
    return () => {
      gone = true;
    };
  }, [scene, open]);

  // Enter goes from one call whose name fits to the next.
  const searched = useRef({ text: '', at: -1 });
  const search = async (text: string) => {
    const q = text.trim();
    if (!q) return setFound('');
    searched.current = { text: q, at: searched.current.text === q ? searched.current.at + 1 : 0 };
    const view = viewOf(new URLSearchParams({ q, step: String(place.step), rank: String(place.rank), phase: place.phase }));
    try {
      let frame = await source.value!.rows(view, searched.current.at, 1, ['pair']);
      const matched = Number(frame.header['matched']);
      if (!matched) return setFound(t('no call has that name'));
      if (!frame.rows) {
        searched.current.at = 0;
        frame = await source.value!.rows(view, 0, 1, ['pair']);
      }
      setFound(t('{0} of {1}', searched.current.at + 1, count(matched)));
      reveal(String(cell(frame.columns.get('row'), 0)));
    } catch (error) {
      setFound((error as Error).message);
    }
  };

  const toggle = (id: string) => {
    const next = new Set(open);
    if (!next.delete(id)) next.add(id);
    setOpen(next);
  };
  const choose = (part: Partial<typeof place>) => {
    fitted.current = '';
    setOpen(new Set());
    setLit('');
    setPlace({ ...place, ...part });
    const now = { ...place, ...part };
    setQuery({ row: null, step: String(now.step), rank: String(now.rank), phase: now.phase });
  };
  const phases = ['forward', 'backward', 'optimizer'].filter((word) => facets['phase']?.includes(word));
  return (
    <Main full>
      <div class="filters">
        <span class="segments" role="group" aria-label={t('phase')}>
          {phases.map((phase) => (
            <button key={phase} aria-pressed={phase === place.phase} onClick={() => choose({ phase })}>
              {t(phase)}
            </button>
          ))}
        </span>
        {(['step', 'rank'] as const).map(
          (name) =>
            (facets[name]?.length ?? 0) > 1 && (
              <select key={name} aria-label={t(name)} value={String(place[name])} onChange={(e) => choose({ [name]: Number(e.currentTarget.value) })}>
                {facets[name]!.map((value) => (
                  <option key={value} value={String(value)}>
                    {t(name)} {value}
                  </option>
                ))}
              </select>
            ),
        )}
        <span class="search">
          <input
            type="search"
            class="model-search"
            placeholder={t('Name (press / to search)')}
            aria-label={t('Name')}
            data-testid="model-search"
            onKeyDown={(event) => {
              if (event.key === 'Enter') void search(event.currentTarget.value);
              else if (event.key === 'Escape') event.currentTarget.blur();
            }}
          />
        </span>
        <span class="small quiet" role="status" data-testid="found">
          {found}
        </span>
        {origin !== null && (
          <button class="button" onClick={() => (setQuery({ row: String(origin), step: null, rank: null, phase: null }), reveal(String(origin)))}>
            {t('Go to the origin')}
          </button>
        )}
        <button class="button" onClick={() => root && setCamera(fit(root, panes.current!, ''))}>
          {t('Fit')}
        </button>
        <button class="button" onClick={() => setOpen(new Set())}>
          {t('Collapse all')}
        </button>
        <span class="small quiet grow">{t('Click a group to open it, a call to look at it. Drag to move, turn the wheel to zoom.')}</span>
      </div>
      {fault && <div class="error">{fault}</div>}
      <div class={`panes ${comparing.value ? '' : 'one'}`} ref={panes}>
        <Pane side="target" title={tail(about.target.path, 60)} root={root} camera={camera} setCamera={setCamera} toggle={toggle} lit={lit} />
        {about.reference && (
          <Pane side="reference" title={tail(about.reference.path, 60)} root={root} camera={camera} setCamera={setCamera} toggle={toggle} lit={lit} />
        )}
      </div>
    </Main>
  );
}

function find(box: Box, id: string, x = 0, y = 0): { x: number; y: number; box: Box } | null {
  if (box.node?.id === id) return { x: x + box.x, y: y + box.y, box };
  for (const child of box.boxes) {
    const hit = find(child, id, x + box.x, y + box.y);
    if (hit) return hit;
  }
  return null;
}

function fit(root: Box, panes: HTMLElement, id: string): Camera {
  const pane = panes.querySelector('.pane')!;
  const { clientWidth: width, clientHeight: height } = pane;
  const hit = id ? find(root, id) : null;
  if (hit) {
    const k = 0.9;
    return { k, x: width / 2 - (hit.x + hit.box.width / 2) * k, y: height / 2 - (hit.y + hit.box.height / 2) * k };
  }
  const k = Math.min(1, Math.max(0.08, Math.min((width - 30) / root.width, (height - 60) / root.height)));
  // A tall model begins at its top, readable, rather than whole and tiny.
  const shown = Math.max(k, Math.min(0.7, (width - 30) / root.width));
  return { k: shown, x: (width - root.width * shown) / 2, y: 40 };
}

interface PaneProps {
  side: 'target' | 'reference';
  title: string;
  root: Box | null;
  camera: Camera;
  setCamera: (change: (now: Camera) => Camera) => void;
  toggle: (id: string) => void;
  lit: string;
}

function Pane({ side, title, root, camera, setCamera, toggle, lit }: PaneProps) {
  const element = useRef<HTMLDivElement>(null);
  const moved = useRef(0);
  useEffect(() => {
    const pane = element.current!;
    const onWheel = (event: WheelEvent) => {
      event.preventDefault();
      const box = pane.getBoundingClientRect();
      const factor = Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016));
      setCamera((now) => {
        const k = Math.min(3, Math.max(0.05, now.k * factor));
        const x = event.clientX - box.left;
        const y = event.clientY - box.top;
        return { k, x: x - ((x - now.x) * k) / now.k, y: y - ((y - now.y) * k) / now.k };
      });
    };
    pane.addEventListener('wheel', onWheel, { passive: false });
    return () => pane.removeEventListener('wheel', onWheel);
  }, []);
  const onPointerDown = (event: PointerEvent) => {
    moved.current = 0;
    let { clientX, clientY } = event;
    const move = (next: PointerEvent) => {
      const dx = next.clientX - clientX;
      const dy = next.clientY - clientY;
      ({ clientX, clientY } = next);
      moved.current += Math.abs(dx) + Math.abs(dy);
      setCamera((now) => ({ ...now, x: now.x + dx, y: now.y + dy }));
    };
    const up = () => {
      removeEventListener('pointermove', move);
      removeEventListener('pointerup', up);
    };
    addEventListener('pointermove', move);
    addEventListener('pointerup', up);
  };
  const press = (box: Box) => {
    if (moved.current > 4) return;
    const node = box.node!;
    if (node.opens) toggle(node.id);
    else if (node.row !== null) go(link('tensor', [node.row]));
  };
  const scene = useMemo(() => root && root.boxes.map((box) => <Node key={box.node!.id} box={box} side={side} press={press} lit={lit} />), [root, lit]);
  const edges = useMemo(() => root && <Edges box={root} side={side} />, [root]);
  return (
    <div class="pane" ref={element} onPointerDown={onPointerDown} data-testid={`pane-${side}`}>
      <h2>
        {t(side === 'target' ? 'Target' : 'Reference')} <span class="faint mono">{title}</span>
      </h2>
      <svg role="group" aria-label={t('Model')}>
        <g transform={`translate(${camera.x} ${camera.y}) scale(${camera.k})`}>
          {edges}
          {scene}
        </g>
      </svg>
    </div>
  );
}

function Edges({ box, side }: { box: Box; side: string }) {
  return (
    <>
      {box.edges
        .filter((edge) => edge.on.includes(side) || edge.on.includes('order'))
        .map((edge, i) => (
          <path
            key={i}
            class={`edge ${edge.on.includes('order') ? 'order' : edge.on.length === 1 && comparing.value ? 'lone' : ''}`}
            d={curve(edge.points)}
          />
        ))}
    </>
  );
}

function curve(points: { x: number; y: number }[]): string {
  const [first, ...rest] = points;
  if (!first) return '';
  let path = `M${first.x.toFixed(1)} ${first.y.toFixed(1)}`;
  for (let i = 0; i < rest.length; i++) {
    const at = rest[i]!;
    const next = rest[i + 1];
    if (!next) path += ` L${at.x.toFixed(1)} ${at.y.toFixed(1)}`;
    else path += ` Q${at.x.toFixed(1)} ${at.y.toFixed(1)} ${((at.x + next.x) / 2).toFixed(1)} ${((at.y + next.y) / 2).toFixed(1)}`;
  }
  return path;
}

function Node({ box, side, press, lit }: { box: Box; side: 'target' | 'reference'; press: (box: Box) => void; lit: string }) {
  const node = box.node!;
  const there = node[side];
  const own = side === 'reference' && node.reference_label ? { ...node, label: node.reference_label } : node;
  const text = caption(own);
  const room = Math.floor((box.width - (box.open ? 60 : 40)) / 7.25);
  const cut = text.length > room ? '…' + text.slice(text.length - room + 1) : text;
  const key = (event: KeyboardEvent) => {
    if (event.key !== 'Enter' && event.key !== ' ') return;
    event.preventDefault();
    event.stopPropagation();
    press(box);
  };
  return (
    <g
      class={`node ${verdictClass(node.verdict)} ${box.open ? 'group' : ''} ${there ? '' : 'ghost'} ${lit === node.id ? 'on' : ''}`}
      transform={`translate(${box.x} ${box.y})`}
      role="button"
      tabindex={0}
      aria-label={`${own.label} ${node.verdict ? t(node.verdict) : ''}`}
      aria-expanded={node.opens ? box.open : undefined}
      data-node={node.id}
      onClick={(event) => {
        event.stopPropagation();
        press(box);
      }}
      onKeyDown={key}
    >
      <title>{`${own.label}\n${node.verdict ? t(node.verdict) : ''}${there ? '' : `\n${t('not in this run')}`}`}</title>
      <rect width={box.width} height={box.height} />
      <text class="glyph" x={11} y={19.5}>
        {isVerdict(node.verdict) ? GLYPH[node.verdict] : '·'}
      </text>
      <text x={27} y={19.5}>
        {cut}
      </text>
      {node.opens && (
        <text x={box.width - 18} y={19.5} class="sub">
          {box.open ? '−' : '+'}
        </text>
      )}
      {!box.open && node.inside > 0 && (
        <text class="sub" x={27} y={34}>
          {node.inside === 1 ? t('1 call inside') : t('{0} calls inside', count(node.inside))}
          {node.lone > 0 && node.verdict !== 'unmatched' ? ` · ${GLYPH.unmatched} ${count(node.lone)}` : ''}
        </text>
      )}
      {box.open && <Edges box={box} side={side} />}
      {box.open && box.boxes.map((child) => <Node key={child.node!.id} box={child} side={side} press={press} lit={lit} />)}
    </g>
  );
}
