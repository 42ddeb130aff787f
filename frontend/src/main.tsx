import { render } from 'preact';
import { App } from './app';
import type { Document } from './data/documents';
import { FileSource, type Embedded } from './data/file';
import { language } from './i18n';
import { openServer } from './open';
import { answer, source, summary } from './state';
import './style.css';

document.documentElement.lang = language.value;
const data = document.getElementById('numscope-data');
if (data?.textContent) {
  const embedded = JSON.parse(data.textContent) as Embedded | { document: Document };
  if ('document' in embedded) answer.value = embedded.document;
  else {
    source.value = new FileSource(embedded);
    summary.value = embedded.summary;
  }
} else {
  void openServer();
}
render(<App />, document.getElementById('app')!);
