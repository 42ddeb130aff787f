// Opening runs on the server: what it is doing now, line by line, until there is something to show.
import { signal } from '@preact/signals';
import type { Document } from './data/documents';
import { json, post, ServerSource } from './data/source';
import type { Summary } from './data/types';
import { answer, source, summary } from './state';

export type State = 'asking' | 'empty' | 'working' | 'failed' | 'ready';
export const state = signal<State>('asking');
export const title = signal('');
export const problem = signal('');
export const progress = signal<{ seconds: number; text: string }[]>([]);
export const elapsed = signal(0);
export const fresh = signal(false); // a run has got new steps since it was opened

interface Answer {
  state: Exclude<State, 'asking'>;
  title: string;
  error: string | null;
  document: boolean; // there is a command's answer in place of runs
}

export async function openServer(): Promise<void> {
  try {
    take(await json<Answer>('state'));
  } catch (error) {
    problem.value = String(error);
    state.value = 'failed';
  }
}

function take(told: Answer): void {
  title.value = told.title;
  problem.value = told.error ?? '';
  if (told.document) void showDocument();
  else if (told.state === 'ready') void show();
  else state.value = told.state;
  if (told.state === 'working') follow();
}

async function showDocument(): Promise<void> {
  answer.value = await json<Document>('document');
  state.value = 'ready';
}

async function show(): Promise<void> {
  const from = new ServerSource();
  const about: Summary = await from.summary();
  source.value = from;
  summary.value = about;
  answer.value = null;
  fresh.value = false;
  state.value = 'ready';
  watch(about.version);
}

function follow(): void {
  progress.value = [];
  const events = new EventSource('api/events');
  events.onmessage = (message) => {
    const event = JSON.parse(message.data as string) as {
      seconds?: number;
      text?: string;
      done?: boolean;
      error?: string;
    };
    if (event.seconds !== undefined) elapsed.value = event.seconds;
    if (event.text) progress.value = [...progress.value, { seconds: event.seconds ?? 0, text: event.text }];
    if (event.done) {
      events.close();
      void openServer();
    }
  };
  events.onerror = () => events.close();
}

export async function open(target: string, reference: string, options: Record<string, unknown>): Promise<void> {
  problem.value = '';
  take(await post<Answer>('open', { target, reference, options }));
}

export async function again(): Promise<void> {
  take(await post<Answer>('again', {}));
}

/** Read the same run again behind the page that is shown. */
async function refresh(): Promise<void> {
  await post<Answer>('again', {});
  follow();
}

let watching = 0;

/** A run that is still being written: ask now and then whether there are new steps. */
function watch(version: string): void {
  clearInterval(watching);
  watching = window.setInterval(async () => {
    if (document.hidden || fresh.value) return;
    try {
      const now = await json<{ version: string }>('version');
      if (now.version !== version) {
        if (summary.peek()?.mode === 'run') {
          clearInterval(watching); // begins anew when the new steps are shown
          await refresh();
        }
        else fresh.value = true;
      }
    } catch {
      clearInterval(watching); // the server has gone
    }
  }, 3000);
}
