import { place, type LayoutRequest } from './layout';

self.onmessage = (event: MessageEvent<LayoutRequest>) => self.postMessage(place(event.data));
