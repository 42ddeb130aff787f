// A table of any length: only the rows on the screen exist, and only the rows near it are asked for.
import type { ComponentChildren } from 'preact';
import { signal } from '@preact/signals';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { cell, type Cell, type Frame } from '../data/frame';
import { t } from '../i18n';

export const ROW = 28;
const PAGE = 200; // rows of one request
const TALLEST = 12_000_000; // pixels; browsers cut off an element that is taller than 17 to 33 million

export interface GridColumn {
  name: string;
  title: string;
  width: number;
  number?: boolean;
  grow?: boolean; // takes what width is left
  tail?: boolean; // its end tells more than its beginning, which is cut off where there is no room
  show: (value: Cell, row: (name: string) => Cell) => ComponentChildren;
  tone?: (value: Cell) => string;
}

interface Props {
  id: string; // changes when the rows do
  columns: GridColumn[];
  load: (offset: number, limit: number) => Promise<Frame>;
  selected: number; // position
  sort: string;
  descending: boolean;
  onSort: (name: string) => void;
  onSelect: (position: number) => void;
  onOpen: (row: number, at: (name: string) => Cell) => void;
  onCount: (matched: number, total: number) => void;
  onFault: (message: string) => void;
}

/** Which rows are on the screen when the scroll height is squeezed into what a browser can hold. */
export function visible(scroll: number, height: number, count: number): { first: number; last: number; shift: number } {
  const full = count * ROW;
  const tall = Math.min(full, TALLEST);
  const ratio = tall <= height ? 0 : scroll / (tall - height);
  const top = tall === full ? scroll : ratio * (full - height);
  const first = Math.max(0, Math.floor(top / ROW) - 4);
  const last = Math.min(count, Math.ceil((top + height) / ROW) + 4);
  return { first, last, shift: scroll - top };
}

export function scrollTo(position: number, height: number, count: number): number {
  const full = count * ROW;
  const tall = Math.min(full, TALLEST);
  const wanted = Math.min(Math.max(0, position * ROW - height / 2), Math.max(0, full - height));
  return tall === full ? wanted : (wanted / (full - height)) * (tall - height);
}

// Widths that the reader dragged, by column; kept between visits.
const widths = signal<Record<string, number>>(readWidths());

function readWidths(): Record<string, number> {
  try {
    return JSON.parse(localStorage.getItem('numscope.widths') ?? '{}') as Record<string, number>;
  } catch {
    return {};
  }
}

function resize(name: string, width: number | null): void {
  const { [name]: _, ...others } = widths.peek();
  widths.value = width === null ? others : { ...others, [name]: Math.max(40, Math.round(width)) };
  try {
    localStorage.setItem('numscope.widths', JSON.stringify(widths.peek()));
  } catch {
    // a report opened from disk may have no storage
  }
}

/** The edge of a column's head: dragged it sets the width, a double click gives the first width back. */
function Grip({ name }: { name: string }) {
  const drag = (event: PointerEvent) => {
    event.preventDefault();
    event.stopPropagation();
    const head = (event.currentTarget as HTMLElement).parentElement!;
    const start = head.offsetWidth - event.clientX;
    const move = (next: PointerEvent) => resize(name, start + next.clientX);
    const up = () => {
      removeEventListener('pointermove', move);
      removeEventListener('pointerup', up);
    };
    addEventListener('pointermove', move);
    addEventListener('pointerup', up);
  };
  return <i class="grip" data-testid={`grip-${name}`} onPointerDown={drag} onClick={(event) => event.stopPropagation()} onDblClick={() => resize(name, null)} />;
}

export function Grid(props: Props) {
  const { id, load, selected, sort, descending } = props;
  const columns = props.columns.map((column) =>
    column.name in widths.value ? { ...column, width: widths.value[column.name]!, grow: false } : column,
  );
  const box = useRef<HTMLDivElement>(null);
  const pages = useRef(new Map<number, Frame | 'asked'>());
  const known = useRef(id);
  const [matched, setMatched] = useState(-1);
  const [scroll, setScroll] = useState(0);
  const [height, setHeight] = useState(600);
  const [, redraw] = useState(0);
  if (known.current !== id) {
    known.current = id;
    pages.current = new Map();
  }

  useLayoutEffect(() => {
    const element = box.current!;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    setHeight(element.clientHeight);
    return () => observer.disconnect();
  }, []);

  const need = (page: number) => {
    const asked = known.current;
    if (page < 0 || pages.current.has(page)) return;
    pages.current.set(page, 'asked');
    load(page * PAGE, PAGE).then(
      (frame) => {
        if (known.current !== asked) return;
        pages.current.set(page, frame);
        setMatched(Number(frame.header['matched']));
        props.onCount(Number(frame.header['matched']), Number(frame.header['total']));
        props.onFault('');
        redraw((n) => n + 1);
      },
      (error: Error) => {
        if (known.current === asked) props.onFault(error.message);
      },
    );
  };

  useEffect(() => {
    if (box.current) box.current.scrollTop = 0;
    setScroll(0);
    need(0);
  }, [id]);

  const inner = Math.max(100, height - 33);
  const rows = Math.max(matched, 0);
  const { first, last, shift } = visible(scroll, inner, rows);
  useEffect(() => {
    for (let page = Math.floor(first / PAGE); page <= Math.floor(Math.max(last - 1, 0) / PAGE); page++) need(page);
  });

  useEffect(() => {
    const element = box.current;
    if (!element || selected < 0 || rows === 0) return;
    const top = element.scrollTop - shift;
    if (selected * ROW < top || (selected + 1) * ROW > top + inner) {
      element.scrollTop = scrollTo(selected, inner, rows);
    }
  }, [selected, rows]);

  const lines = [];
  for (let at = first; at < last; at++) {
    const frame = pages.current.get(Math.floor(at / PAGE));
    const ready = frame && frame !== 'asked' ? frame : null;
    const within = at % PAGE;
    const get = (name: string) => (ready ? cell(ready.columns.get(name), within) : null);
    lines.push(
      <div
        class={`line ${at === selected ? 'on' : ''}`}
        key={at}
        role="row"
        aria-rowindex={at + 2}
        aria-selected={at === selected}
        style={{ transform: `translateY(${at * ROW + shift}px)` }}
        onClick={() => props.onSelect(at)}
        onDblClick={() => ready && props.onOpen(Number(get('row')), get)}
      >
        {columns.map((column) => {
          const value = get(column.name);
          return (
            <span
              key={column.name}
              role="cell"
              class={`${column.number ? 'number' : ''} ${column.tail ? 'tail' : ''} ${column.tone?.(value) ?? ''}`}
              style={{ width: `${column.width}px`, flexGrow: column.grow ? 1 : 0 }}
              title={typeof value === 'string' ? value : undefined}
            >
              {!ready ? '' : column.tail ? <bdi>{column.show(value, get)}</bdi> : column.show(value, get)}
            </span>
          );
        })}
      </div>,
    );
  }
  return (
    <div class="grid" ref={box} onScroll={() => setScroll(box.current!.scrollTop)} role="table" aria-rowcount={rows + 1} data-rows={matched}>
      <div class="head" role="row">
        {columns.map((column) => (
          <button
            key={column.name}
            role="columnheader"
            class={column.number ? 'number' : ''}
            style={{ width: `${column.width}px`, flexGrow: column.grow ? 1 : 0 }}
            aria-sort={sort === column.name ? (descending ? 'descending' : 'ascending') : 'none'}
            onClick={(event) => {
              if (event.detail > 0) event.currentTarget.blur(); // after a click the keys are for the rows again
              props.onSort(column.name);
            }}
            title={column.title}
          >
            {column.title}
            {sort === column.name ? (descending ? ' ↓' : ' ↑') : ''}
            <Grip name={column.name} />
          </button>
        ))}
      </div>
      <div class="body" style={{ height: `${Math.min(rows * ROW, TALLEST)}px` }}>
        {lines}
      </div>
      {matched === 0 && <div class="empty">{t('No row passes these filters.')}</div>}
    </div>
  );
}
