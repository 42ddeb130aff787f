// Where the pages get their data: the server, or (in an HTML report) the file itself.
import { decode, type Frame } from './frame';
import type {
  CallDetail,
  Element,
  Group,
  Heat,
  Histogram,
  Place,
  Summary,
  TensorAbout,
} from './types';
import { queryOf, type View } from './view';

export interface Source {
  readonly live: boolean; // a server answers: tensors, the model's graph and new comparisons can be had
  summary(): Promise<Summary>;
  rows(view: View, offset: number, limit: number, columns: string[]): Promise<Frame>;
  find(view: View, start: number, direction: 1 | -1): Promise<{ position: number; row: number | null }>;
  position(view: View, row: number): Promise<number>;
  save(view: View, columns: string[]): void;
  story(view: View, start: number, end: number): Promise<Frame>;
  heat(): Promise<Heat>;
  call(row: number): Promise<CallDetail>;
}

export class Refused extends Error {}

export async function ask(path: string, init?: RequestInit): Promise<Response> {
  const response = await fetch(`api/${path}`, init);
  if (response.ok) return response;
  const text = await response.text();
  let message = text;
  try {
    message = (JSON.parse(text) as { error: string }).error;
  } catch {
    // the guard answers in plain text
  }
  throw new Refused(message || response.statusText);
}

export async function json<T>(path: string): Promise<T> {
  return (await (await ask(path)).json()) as T;
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  return (await (await postRaw(path, body)).json()) as T;
}

export function postRaw(path: string, body: unknown): Promise<Response> {
  const headers = { 'Content-Type': 'application/json' };
  return ask(path, { method: 'POST', body: JSON.stringify(body), headers });
}

async function frame(path: string): Promise<Frame> {
  return decode(await (await ask(path)).arrayBuffer());
}

function withView(view: View, more: Record<string, string | number>): string {
  const query = queryOf(view);
  for (const [name, value] of Object.entries(more)) query.set(name, String(value));
  return query.toString();
}

export class ServerSource implements Source {
  readonly live = true;

  summary = () => json<Summary>('session');

  rows(view: View, offset: number, limit: number, columns: string[]): Promise<Frame> {
    return frame(`rows?${withView(view, { offset, limit, columns: columns.join(',') })}`);
  }

  find(view: View, start: number, direction: 1 | -1): Promise<{ position: number; row: number | null }> {
    return json(`find?${withView(view, { start, direction })}`);
  }

  async position(view: View, row: number): Promise<number> {
    return (await json<{ position: number }>(`position?${withView(view, { row })}`)).position;
  }

  save(view: View, columns: string[]): void {
    const link = document.createElement('a');
    link.href = `api/export?${withView(view, { columns: columns.join(',') })}`;
    link.download = 'numscope.csv';
    link.click();
  }

  story(view: View, start: number, end: number): Promise<Frame> {
    return frame(`story?${withView(view, { start, end })}`);
  }

  heat = () => json<Heat>('heat');
  call = (row: number) => json<CallDetail>(`call/${row}`);
}

// What only a server can answer.
export const server = {
  group: (step: number, rank: number, phase: string, group: string) =>
    json<Group>(`group?${new URLSearchParams({ step: `${step}`, rank: `${rank}`, phase, group })}`),
  path: (row: number) => json<Place>(`path/${row}`),
  tensor: (row: number, slot: string) => json<TensorAbout>(`tensor/${row}/${encodeURIComponent(slot)}/about`),
  histogram: (row: number, slot: string, scale: string) =>
    json<Histogram>(`tensor/${row}/${encodeURIComponent(slot)}/histogram?scale=${scale}`),
  plane: (row: number, slot: string, what: string, rows: number, columns: number, fixed: number[]) =>
    frame(
      `tensor/${row}/${encodeURIComponent(slot)}/plane?what=${what}&rows=${rows}&columns=${columns}&fixed=${fixed.join(',')}`,
    ),
  values: (row: number, slot: string, query: string) =>
    json<{ size: number; elements: Element[] }>(`tensor/${row}/${encodeURIComponent(slot)}/values?${query}`),
};
