import type { LayoutAnswer, LayoutRequest } from './layout';

let worker: Worker | null = null;
let next = 0;
const waiting = new Map<number, (answer: LayoutAnswer) => void>();

/** Lay a group out in the worker, so that the page stays fluid meanwhile. */
export function layOut(request: Omit<LayoutRequest, 'id'>): Promise<LayoutAnswer> {
  if (!worker) {
    worker = new Worker(new URL('./worker.ts', import.meta.url));
    worker.onmessage = (event: MessageEvent<LayoutAnswer>) => {
      waiting.get(event.data.id)?.(event.data);
      waiting.delete(event.data.id);
    };
  }
  const id = next++;
  return new Promise((resolve) => {
    waiting.set(id, resolve);
    worker!.postMessage({ ...request, id });
  });
}
